"""Where the nodes of any graph stand on its map."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.report.layout import (
    COLUMN_WIDTH,
    COLUMNS,
    LANE_HEIGHT,
    LEFT_MARGIN,
    Band,
    Edge,
    GraphMap,
    Node,
    lay_out,
)
from tapml_targets.errors import InputError
from tests.report.graphs import RUN, network_map

ONE = (Band("b"),)


def corner(graph_map: GraphMap, name: str) -> tuple[int, int]:
    (found,) = (each for each in graph_map.nodes if each.node.name == name)
    return found.left, found.top


def test_a_node_stands_right_of_what_it_reads_whatever_the_order_of_the_nodes() -> None:
    nodes = [Node(name, "b") for name in "cba"]
    drawn = lay_out(nodes, [Edge("a", "b"), Edge("b", "c")], ONE)
    assert [corner(drawn, name)[0] for name in "abc"] == [
        LEFT_MARGIN + COLUMN_WIDTH * column for column in range(3)
    ]


def test_nodes_without_edges_stand_below_each_other_or_in_the_column_they_ask_for() -> None:
    """Settings of several models: a row of each model, in equal columns."""
    bands = [Band("gpt"), Band("rwkv")]
    nodes = [
        Node(f"{band.name} {column}", band.name, column=column)
        for band in bands
        for column in (0, 1, COLUMNS + 1)
    ]
    drawn = lay_out(nodes, (), bands)
    lefts = {name: corner(drawn, name)[0] for name in ("gpt 0", "gpt 1", f"gpt {COLUMNS + 1}")}
    assert list(lefts.values()) == [LEFT_MARGIN + COLUMN_WIDTH * each for each in (0, 1, 1)]
    assert corner(drawn, f"gpt {COLUMNS + 1}")[1] > corner(drawn, "gpt 1")[1]
    assert corner(drawn, "gpt 1")[0] == corner(drawn, "rwkv 1")[0]
    stacked = lay_out([Node("a", "b"), Node("c", "b")], (), ONE)
    assert corner(stacked, "c") == (LEFT_MARGIN, corner(stacked, "a")[1] + LANE_HEIGHT)


def test_a_band_has_its_title_and_one_without_nodes_is_left_out() -> None:
    drawn = lay_out([Node("a", "b")], (), [Band("none"), Band("b", "The band")])
    assert [title for title, *_ in drawn.bands] == ["The band"]


def test_a_long_title_has_room_before_the_nodes() -> None:
    drawn = lay_out([Node("a", "b")], (), [Band("b", "fsdp2 x 4 reshard=no")])
    assert corner(drawn, "a")[0] == LEFT_MARGIN + 11 * 7
    assert drawn.width == corner(drawn, "a")[0] + COLUMN_WIDTH


def test_a_linear_run_is_one_node_that_knows_its_members() -> None:
    drawn = network_map(shortest_run=3)
    (run,) = (each for each in drawn.nodes if each.members)
    assert run.members == RUN
    assert (run.node.name, run.node.label) == ("conv_2", "Conv 2 and 6 more")
    assert run.node.heat == pytest.approx(0.35)
    assert run.node.size == 7.0
    assert run.node.facts[-1] == ("conv_8", "deviation 7e-6")
    names = [each.node.name for each in drawn.nodes]
    edges = {(names[source], names[target]) for source, target in drawn.edges}
    assert {("stem", "conv_2"), ("conv_2", "join"), ("stem", "join")} <= edges
    assert "join" in names, "a node of another status is never hidden in a run"


def test_a_run_that_is_too_short_and_one_over_two_bands_are_drawn_node_by_node() -> None:
    assert not any(each.members for each in network_map(shortest_run=8).nodes)
    nodes = [Node(name, band) for name, band in zip("abcd", "xxyy", strict=True)]
    edges = [Edge(one, two) for one, two in pairwise("abcd")]
    drawn = lay_out(nodes, edges, [Band("x"), Band("y")], shortest_run=2)
    assert [each.members for each in drawn.nodes] == [("a", "b"), ("c", "d")]


def test_the_data_holds_what_is_known_of_a_node_and_no_more() -> None:
    plain, full = lay_out(
        [Node("a", "b", "A"), Node("c", "b", "", "fail", 0.5, 2.0, (("ratio", "3"),))], (), ONE
    ).to_json()["nodes"]
    assert plain == ["a", 0, LEFT_MARGIN, 0]
    assert full[4] == {"status": "fail", "heat": 0.5, "size": 2.0, "facts": [["ratio", "3"]]}


@pytest.mark.parametrize(
    ("nodes", "edges", "said"),
    [
        ([Node("a", "b"), Node("a", "b")], [], "several nodes of the map are named 'a'"),
        ([Node("a", "x")], [], r"node 'a' is in band 'x'; expected one of \['b'\]"),
        ([Node("a", "b")], [Edge("a", "z")], "ends at 'z', which is no node"),
        ([Node("a", "b", heat=1.5)], [], "the heat of node 'a' is 1.5; expected 0 to 1"),
        ([Node("a", "b", heat=float("nan"))], [], "the heat of node 'a' is nan"),
        ([Node("a", "b"), Node("c", "b")], [Edge("a", "c"), Edge("c", "a")], "has a cycle, "),
    ],
    ids=["name", "band", "edge", "heat", "nan", "cycle"],
)
def test_a_graph_that_cannot_be_drawn_is_refused(
    nodes: list[Node], edges: list[Edge], said: str
) -> None:
    for shortest_run in (None, 2):
        with pytest.raises(InputError, match=said):
            lay_out(nodes, edges, ONE, shortest_run=shortest_run)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], list[Edge], list[Band]]:
    bands = [Band(f"band {place}") for place in range(draw(st.integers(1, 5)))]
    number = draw(st.integers(0, 40))
    band = st.sampled_from([each.name for each in bands])
    nodes = [
        Node(f"n{place}", draw(band), status=draw(st.sampled_from(["", "fail"])))
        for place in range(number)
    ]
    ends = st.tuples(st.integers(0, max(0, number - 1)), st.integers(0, max(0, number - 1)))
    pairs = draw(st.lists(ends, max_size=60))
    edges = [Edge(f"n{min(pair)}", f"n{max(pair)}") for pair in pairs if pair[0] != pair[1]]
    return draw(st.permutations(nodes)), edges, bands


@given(graphs(), st.sampled_from([None, 2, 4]))
def test_nothing_overlaps_everything_is_inside_and_nothing_is_lost(
    graph: tuple[list[Node], list[Edge], list[Band]], shortest_run: int | None
) -> None:
    nodes, edges, bands = graph
    drawn = lay_out(nodes, edges, bands, shortest_run=shortest_run)
    shown = [name for each in drawn.nodes for name in each.members or (each.node.name,)]
    assert sorted(shown) == sorted(node.name for node in nodes)
    assert len({(each.left, each.top) for each in drawn.nodes}) == len(drawn.nodes)
    boxes = {title: (left, top, height) for title, left, top, height in drawn.bands}
    for each in drawn.nodes:
        left, top, height = boxes[each.node.band]
        assert left <= each.left <= left + drawn.strip - COLUMN_WIDTH
        assert top <= each.top <= top + height - LANE_HEIGHT
        assert each.left + COLUMN_WIDTH <= drawn.width
        assert each.top + LANE_HEIGHT <= drawn.height
    head = {name: each.node.name for each in drawn.nodes for name in each.members}
    names = [each.node.name for each in drawn.nodes]
    kept = {(head.get(e.source, e.source), head.get(e.target, e.target)) for e in edges}
    assert {(names[source], names[target]) for source, target in drawn.edges} == {
        (one, two) for one, two in kept if one != two
    }
