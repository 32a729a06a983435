"""Imports one entry: from its torch program to steps over values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tapml.importing.bodies import body_maker
from tapml.importing.donation import with_donations
from tapml.importing.exporting import ExportedEntry
from tapml.importing.flatten import Flattener, FunctionTensor, Guide
from tapml.importing.guides import NamedGuide
from tapml.importing.lowering import LoweredEntry, lower
from tapml.importing.operators import OperatorTable
from tapml.importing.torch_subgraph_cut import add_torch_forms
from tapml.importing.translate import TranslatedEntry
from tapml.importing.weights import WeightTable
from tapml.plan.graph_plan import Entry, StateBinding, SymbolBounds, TensorSpecification
from tapml_targets.errors import InputError


def import_entry(
    exported: ExportedEntry,
    translated: TranslatedEntry,
    table: OperatorTable,
    weights: WeightTable,
) -> Entry:
    """Import one entry; its operators and weights are added to the model's tables."""
    description = exported.description
    after = {index: name for name, _, index in description.state}
    lowered = lower(translated.module, description.name, after)
    guide = NamedGuide(exported.origins, translated.names, lowered)
    flattener = flattener_for(description.name, lowered, table, weights, guide)
    flat, outputs = flattener.flatten(
        lowered.main, _tensors(exported, lowered, weights), bounds_of(lowered.main)
    )
    entry = with_donations(with_signature(flat, outputs, after, table), table)
    add_torch_forms(exported, entry, table, weights)
    return entry


def flattener_for(
    name: str, lowered: LoweredEntry, table: OperatorTable, weights: WeightTable, guide: Guide
) -> Flattener:
    """The flattener of a lowered entry's function."""
    return Flattener(
        name,
        lowered.functions,
        table,
        guide,
        constant=weights.constant,
        make_body=body_maker(lowered),
        variants=lowered.variants,
    )


def _tensors(
    exported: ExportedEntry, lowered: LoweredEntry, weights: WeightTable
) -> dict[Any, FunctionTensor]:
    """Classify the function's parameters as inputs, state or weights."""
    description = exported.description
    state = {index: name for name, index, _ in description.state}
    parameters = list(lowered.main.params)
    count = int(lowered.main.attrs["num_input"])
    names = description.input_names or tuple(str(p.name) for p in parameters[:count])
    if len(names) != count:
        raise InputError(
            f"{description.name!r} takes {count} tensors, but {len(names)} input names were given"
        )
    found = {}
    for index, parameter in enumerate(parameters):
        if index < count:
            lifetime = "state" if index in state else "input"
            found[parameter] = FunctionTensor(state.get(index, names[index]), lifetime)  # type: ignore[arg-type]
            continue
        placeholder = str(parameter.name)
        tensor = exported.parameters[placeholder]
        name = weights.parameter(exported.parameter_names[placeholder], tensor)
        found[parameter] = FunctionTensor(name, "weight")
    return found


def with_signature(
    entry: Entry, outputs: tuple[str, ...], after: Mapping[int, str], table: OperatorTable
) -> Entry:
    """Split a function's results into outputs and state, and mark what writes state.

    `after` has the state's name by the index of the result.
    """
    written_by = {
        name: (call.operator, position - len(call.arguments) + table.writes(call.operator))
        for call in entry.calls
        for position, name in enumerate(call.arguments)
    }
    bindings = []
    for index, name in after.items():
        bindings.append(StateBinding(name, name, outputs[index]))
        operator, position = written_by.get(outputs[index], ("", -1))
        if position >= 0:
            table.mark_state(operator, position)
    return replace(
        entry,
        outputs=tuple(name for index, name in enumerate(outputs) if index not in after),
        state=tuple(bindings),
    )


def add_state(state: dict[str, TensorSpecification], name: str, entry: Entry) -> None:
    """Add a state tensor of an entry to the model's; it must be the same in every entry."""
    value = entry.values[name]
    if not all(isinstance(extent, int) for extent in value.shape):
        raise InputError(f"state {name!r} has a dynamic shape {value.shape}; expected a static one")
    specification = TensorSpecification(name, value.shape, value.dtype)  # type: ignore[arg-type]
    if state.setdefault(name, specification) != specification:
        raise InputError(
            f"state {name!r} differs between entries: {state[name]} and {specification}"
        )


def bounds_of(main: Any) -> tuple[SymbolBounds, ...]:
    """The symbol bounds that the importer attached to a function."""
    attributes = dict(main.attrs) if main.attrs else {}
    lower_bounds: Mapping[Any, Any] = attributes.get("tir_var_lower_bound") or {}
    upper_bounds: Mapping[Any, Any] = attributes.get("tir_var_upper_bound") or {}
    uppers = {str(name): int(value) for name, value in upper_bounds.items()}
    return tuple(
        SymbolBounds(str(name), int(value), uppers.get(str(name)))
        for name, value in lower_bounds.items()
    )
