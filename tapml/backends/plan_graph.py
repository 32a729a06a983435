"""A plan as nodes: the call sites of the entries that run a whole text or the whole module.

A node has the call site's name, without its entry where there is one. Its sources lead through
views, and through what one entry stores for the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tapml.backends.plan_inputs import plan_inputs
from tapml.backends.runner import Array, Node, to_plain
from tapml.backends.steps import filled
from tapml.execute.arrays import aligned
from tapml.plan.graph_plan import CallStep, Entry, GraphPlan, ViewStep
from tapml_targets.dtype import dtype
from tapml_targets.expression import bind_shape, evaluate


class _EntryGraph:
    """Which call site writes what in an entry."""

    def __init__(self, entry: Entry, prefix: str) -> None:
        self.entry = entry
        self._prefix = prefix
        self.calls = {self.name_of(each): each for each in entry.calls}
        # The value that a view shows, and the call site that writes a value.
        self._seen = {
            each.result: each.source for each in entry.steps if isinstance(each, ViewStep)
        }
        self.made: dict[str, tuple[str, int]] = {}

    def name_of(self, call: CallStep) -> str:
        return self._prefix + call.site.removeprefix(f"{self.entry.name}/")

    def whole(self, value: str) -> str:
        """What a view shows."""
        while value in self._seen:
            value = self._seen[value]
        return value


class PlanGraph:
    """The graph of a plan.

    Raises
    ------
    UnsupportedOperatorError
        If the model is of a kind whose plan is not compared.
    """

    def __init__(self, model: Any, plan: GraphPlan) -> None:
        self._given = plan_inputs(model)
        self._plan = plan
        names = self._given.entries
        self._entries = {
            name: _EntryGraph(plan.entries[name], f"{name}/" if len(names) > 1 else "")
            for name in names
        }
        self._calls: dict[str, tuple[_EntryGraph, CallStep]] = {}
        stored: dict[str, tuple[str, int]] = {}
        for graph in self._entries.values():
            # What an entry before this one left in the state.
            graph.made |= {
                each.before: stored[each.state]
                for each in graph.entry.state
                if each.state in stored
            }
            for name, call in graph.calls.items():
                self._calls[name] = graph, call
                for place, value in enumerate(self._writes(call)):
                    graph.made[value] = name, place
            for each in graph.entry.state:
                if (after := graph.whole(each.after)) in graph.made:
                    stored[each.state] = graph.made[after]
        self.inputs = self._given.inputs
        self.runs = self._given.runs
        self._sources_of = {name: self._find_sources(name) for name in self._calls}

    def name_of(self, entry: str, call: CallStep) -> str:
        """A call site's name."""
        return self._entries[entry].name_of(call)

    def nodes(self) -> list[Node]:
        """The call sites, in execution order; the kind is the operator."""
        return [
            Node(name, call.operator, tuple(place for _, place, _ in self._sources_of[name]))
            for name, (_, call) in self._calls.items()
        ]

    def outputs_of(
        self, runs: Sequence[Mapping[str, Array]], inputs: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The model's outputs, from what every run of its last entry gave: position by position."""
        found = {}
        for name in self._entries[self._given.entries[-1]].entry.outputs:
            values = [to_plain(each[name]) for each in runs]
            whole = values[0] if len(values) == 1 else np.concatenate(values, axis=1)
            found[name] = self._given.cut(whole, inputs).copy()
        return found

    def call_alone(
        self, node: str, inputs: Sequence[Array], weights: Mapping[str, Array]
    ) -> tuple[CallStep, list[Array], dict[str, int], list[int]]:
        """The call site, its operator's arguments in order, its symbols, and what it writes.

        State that nothing stored is zero, as before the first run.
        """
        graph, call = self._calls[node]
        entry = graph.entry
        values = entry.values
        given: dict[str, Array] = {}
        symbols: dict[str, int] = {}
        for (name, (source, _), whole), read in zip(self._sources_of[node], inputs, strict=True):
            array = read
            if whole in entry.inputs:
                array = self._given.alone(entry.name, whole, self.filled({source: read})[source])
            bind_shape(values[whole].shape, array.shape, symbols, node)
            given[name] = array
        arguments = []
        parameters = self._plan.operators[call.operator].parameters
        for name in call.arguments:
            value = values[name]
            shape = tuple(evaluate(extent, symbols) for extent in value.shape)
            kind = np.dtype(dtype(value.dtype).numpy_name)
            if name in given:
                array = given[name].reshape(shape).astype(kind)
            elif entry.storages[value.storage].lifetime == "weight":
                array = weights[value.storage].reshape(shape)
            else:
                array = np.zeros(shape, kind)
            arguments.append(aligned(array))
        numbers = {name: evaluate(each, symbols) for name, each in call.symbols}
        written = [at for at, each in enumerate(parameters) if each.role != "input"]
        return call, arguments, numbers, written

    def filled(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One run's instances: the last repeated up to as many as the model takes."""
        return filled(inputs, next(iter(self.inputs()[0].shape), None))

    def _find_sources(self, node: str) -> list[tuple[str, tuple[str, int], str]]:
        """(argument, its place, the value that it shows), without weights and other state."""
        graph, call = self._calls[node]
        found = []
        operator = self._plan.operators[call.operator]
        for name, parameter in zip(call.arguments, operator.parameters, strict=True):
            if parameter.role == "output":
                continue
            whole = graph.whole(name)
            if whole in graph.made:
                found.append((name, graph.made[whole], whole))
            elif whole in graph.entry.inputs:
                found.append((name, (self._given.source_of(graph.entry.name, whole), 0), whole))
        return found

    def _writes(self, call: CallStep) -> list[str]:
        parameters = self._plan.operators[call.operator].parameters
        return [
            name
            for name, each in zip(call.arguments, parameters, strict=True)
            if each.role != "input"
        ]
