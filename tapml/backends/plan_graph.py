"""A plan as nodes: the call sites of the entry that runs a whole text or the whole module.

A node has the call site's name without its entry; its sources lead through views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tapml.backends.parts import filled
from tapml.backends.runner import Array, Input, Node
from tapml.execute.arrays import aligned
from tapml.models.inputs import PREFILL
from tapml.models.stored import MODULE, StoredDecoder, StoredModule
from tapml.plan.graph_plan import CallStep, GraphPlan, ViewStep
from tapml_targets.dtype import dtype
from tapml_targets.errors import UnsupportedOperatorError
from tapml_targets.expression import bind_shape, evaluate

TOKENS: Final = "token_ids"


class PlanGraph:
    """The graph of a plan.

    Raises
    ------
    UnsupportedOperatorError
        If the model is neither a decoder nor a plain module.
    """

    def __init__(self, model: Any, plan: GraphPlan) -> None:
        if not isinstance(model, StoredDecoder | StoredModule):
            raise UnsupportedOperatorError(
                f"{model.name} is neither a decoder nor a plain module: its plan is compared by "
                "`tapml offload` alone"
            )
        self._model = model
        self._plan = plan
        self.entry = plan.entries[MODULE if isinstance(model, StoredModule) else PREFILL]
        self._calls = {self.name_of(each): each for each in self.entry.calls}
        # The value that a view shows, and the call site that writes a value.
        self._seen = {
            each.result: each.source for each in self.entry.steps if isinstance(each, ViewStep)
        }
        self._made: dict[str, tuple[str, int]] = {}
        for name, call in self._calls.items():
            self._made |= {value: (name, place) for place, value in enumerate(self._writes(call))}

    def name_of(self, call: CallStep) -> str:
        """A call site's name."""
        return call.site.removeprefix(f"{self.entry.name}/")

    def inputs(self) -> list[Input]:
        """A decoder reads one text a run, a module what it declares."""
        if isinstance(self._model, StoredDecoder):
            return [Input(TOKENS, (1, None), "int64")]
        return [
            Input(
                each.name,
                tuple(extent if isinstance(extent, int) else None for extent in each.shape),
                each.dtype,
            )
            for each in self._model.inputs
        ]

    def nodes(self) -> list[Node]:
        """The call sites, in execution order; the kind is the operator."""
        return [
            Node(name, call.operator, tuple(place for _, place, _ in self._sources(call)))
            for name, call in self._calls.items()
        ]

    def prepared(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The entry's inputs, of one run of the model's."""
        if isinstance(self._model, StoredDecoder):
            return self._model.prepare_prefill([int(each) for each in inputs[TOKENS][0]])
        return self._model.prepare(inputs)

    def call_alone(
        self, node: str, inputs: Sequence[Array], weights: Mapping[str, Array]
    ) -> tuple[CallStep, list[Array], dict[str, int], list[int]]:
        """The call site, its operator's arguments in order, its symbols, and what it writes.

        State is zero, as before the first run.
        """
        call = self._calls[node]
        values = self.entry.values
        given: dict[str, Array] = {}
        symbols: dict[str, int] = {}
        for (name, (source, _), whole), read in zip(self._sources(call), inputs, strict=True):
            array = self._input(source, whole, read)
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
            elif self.entry.storages[value.storage].lifetime == "weight":
                array = weights[value.storage].reshape(shape)
            else:
                array = np.zeros(shape, kind)
            arguments.append(aligned(array))
        numbers = {name: evaluate(each, symbols) for name, each in call.symbols}
        written = [at for at, each in enumerate(parameters) if each.role != "input"]
        return call, arguments, numbers, written

    def _input(self, source: str, whole: str, array: Array) -> Array:
        """A value, or what the entry takes for the model's input."""
        if source not in {each.name for each in self.inputs()}:
            return array
        filled = self.filled({source: array})
        return self.prepared(filled)[whole] if source == TOKENS else filled[source]

    def filled(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One run's instances: the last repeated up to as many as the model takes."""
        return filled(inputs, next(iter(self.inputs()[0].shape), None))

    def _sources(self, call: CallStep) -> list[tuple[str, tuple[str, int], str]]:
        """(argument, its place, the value that it shows), without weights and state."""
        found = []
        operator = self._plan.operators[call.operator]
        for name, parameter in zip(call.arguments, operator.parameters, strict=True):
            whole = name
            while whole in self._seen:
                whole = self._seen[whole]
            if parameter.role == "output":
                continue
            if whole in self._made:
                found.append((name, self._made[whole], whole))
            elif whole in self.entry.inputs:
                # A decoder's positions and masks follow from its tokens.
                own = TOKENS if isinstance(self._model, StoredDecoder) else whole
                found.append((name, (own, 0), whole))
        return found

    def _writes(self, call: CallStep) -> list[str]:
        parameters = self._plan.operators[call.operator].parameters
        return [
            name
            for name, each in zip(call.arguments, parameters, strict=True)
            if each.role != "input"
        ]
