"""A graph of no session: two bands of a network, with a deviation for each node."""

from __future__ import annotations

from itertools import pairwise

from tapml.report.layout import Band, Edge, GraphMap, Node, lay_out

BANDS = (Band("encoder", "Encoder"), Band("decoder", "Decoder"))
RUN = tuple(f"conv_{place}" for place in range(2, 9))
"""The linear run of the encoder: seven nodes of one status between a branch and a failure."""


def network() -> tuple[list[Node], list[Edge]]:
    """Twenty nodes: a stem with a shortcut, a run, a failing node; and a chain that degrades."""
    nodes = [Node("input", "encoder", status="pass"), Node("stem", "encoder", status="pass")]
    nodes += [
        Node(name, "encoder", label=f"Conv {name[5:]}", status="pass", heat=0.05 * place,
             size=1.0, facts=(("deviation", f"{place}e-6"),))
        for place, name in enumerate(RUN, 1)
    ]  # fmt: skip
    nodes.append(Node("join", "encoder", "Add join", "fail", 1.0, 4.0, (("deviation", "0.25"),)))
    nodes += [
        Node(f"block_{place}", "decoder", status=status)
        for place, status in enumerate(["degraded", "absent"] * 5)
    ]
    names = [node.name for node in nodes]
    assert len(names) == 20
    edges = [Edge(one, two) for one, two in pairwise(names)]
    return nodes, [*edges, Edge("stem", "join")]


def network_map(shortest_run: int | None = None) -> GraphMap:
    nodes, edges = network()
    name = "all nodes" if shortest_run is None else "runs as one"
    return lay_out(nodes, edges, BANDS, name=name, shortest_run=shortest_run)
