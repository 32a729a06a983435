"""LossInGraph: gradients flow through the losses of a step.

A term of a loss that was detached, or computed before gradients were on, trains nothing; other
terms hide that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import BACKWARD, GRAPH, NODE, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name


class LossInGraph(Relation):
    """Losses beside the graphs that backward calls begin with; new beside the paper's relations."""

    name = "LossInGraph"
    structural = True
    least = 3
    avoided = ("",)
    apis = ("api", "backward")

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Kinds of losses that are in a graph."""
        found = {
            (name, node)
            for window in windows
            for name, records in window.by_name.items()
            for node in {str(each.fields[NODE]) for each in records if NODE in each.fields}
            if any(node in _graph(each) for each in window.calls(BACKWARD))
        }
        return [{"api": name, "node": node, "backward": BACKWARD} for name, node in sorted(found)]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each step with the loss and a backward call."""
        node = params["node"]
        for process in window.processes:
            losses = [
                each
                for each in process
                if each.name == params["api"] and each.fields.get(NODE) == node
            ]
            backwards = [each for each in process if each.name == BACKWARD and each.done]
            graphs = [_graph(each) for each in backwards]
            holds = any(node in graph for graph in graphs)
            # What a long graph has further down is not known.
            if losses and graphs and (holds or not any("..." in graph for graph in graphs)):
                found = f"no backward call of the step goes through {short_name(params['api'])}"
                yield Example(holds, (losses[-1], backwards[-1]), params["api"], found)

    def sentence(self, params: Params) -> str:
        """The loss."""
        return f"Gradients flow through {short_name(params['api'])}."

    def concerns(self, params: Params) -> frozenset[str]:
        """The loss."""
        return frozenset({"graph of a loss"})


def _graph(record: Record) -> list[object]:
    found = record.fields.get(GRAPH)
    return found if isinstance(found, list) else []


RELATION = LossInGraph()
