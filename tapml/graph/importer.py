"""A model becomes a GraphPlan.

torch.export, decompositions, Relax, fused PrimFuncs, steps over values: each has a module of its
own; this one takes an entry through them and joins the entries of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

from tapml.graph.bodies import body_maker
from tapml.graph.donation import with_donations
from tapml.graph.exporting import EntryDescription, ExportedEntry, export_entry
from tapml.graph.flatten import CallSite, Flattener, FunctionTensor
from tapml.graph.lowering import ENTRY, LoweredEntry, lower
from tapml.graph.operators import OperatorTable
from tapml.graph.origins import layer_of
from tapml.graph.plan import (
    Entry,
    GraphPlan,
    Origin,
    StateBinding,
    SymbolBounds,
    TensorSpecification,
)
from tapml.graph.translate import NodeNames, TranslatedEntry, translate
from tapml.graph.validate import check_plan
from tapml.graph.weights import WeightTable
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.models.loaded import LoadedModel

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ImportedModel:
    """A plan and what it was made from.

    Attributes
    ----------
    plan
        The graph plan.
    weights
        Raw values by weight name (bfloat16 as uint16), the plan's constants included.
    exported
        The torch programs by entry name, for rooting; empty where the plan came from Relax or from
        the cache.
    """

    plan: GraphPlan
    weights: dict[str, Array]
    exported: dict[str, ExportedEntry] = field(default_factory=dict)


def import_model(model: LoadedModel) -> ImportedModel:
    """Import a language model: its entries share operators, weights and state.

    Raises
    ------
    UnsupportedOperatorError
        If the model uses operators that cannot be imported; all are named with their lines.
    """
    descriptions = []
    for module in model.entry_modules():
        prefix = next(
            (name for name, part in module.module.named_modules() if part is model.module), ""
        )
        descriptions.append(
            EntryDescription(
                name=module.name,
                module=module.module,
                example_inputs=module.example_inputs,
                input_names=module.input_names,
                output_names=module.output_names,
                dynamic_shapes=module.dynamic_shapes,
                state=tuple((s.name, s.input_index, s.output_index) for s in module.state),
                prefix=prefix,
            )
        )
    return import_entries(model.name, descriptions)


def import_module(
    module: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    name: str = "main",
    dynamic: Any = None,
) -> ImportedModel:
    """Import any torch module as a plan with one entry.

    Parameters
    ----------
    module
        In evaluation mode; it is exported as it is.
    example_inputs
        Positional tensors.
    name
        Name of the plan and of its entry.
    dynamic
        ``dynamic_shapes`` of ``torch.export.export``.

    Raises
    ------
    InputError
        If torch.export does not take the module.
    UnsupportedOperatorError
        If it uses operators that cannot be imported.
    """
    description = EntryDescription(
        name=name,
        module=module,
        example_inputs=tuple(example_inputs),
        input_names=(),
        dynamic_shapes=dynamic,
    )
    return import_entries(name, [description])


def import_entries(name: str, descriptions: Sequence[EntryDescription]) -> ImportedModel:
    """Import several entries of one model into one plan."""
    table = OperatorTable()
    weights = WeightTable()
    entries: dict[str, Entry] = {}
    state: dict[str, TensorSpecification] = {}
    exported = {each.name: export_entry(each) for each in descriptions}
    # Every entry is translated before any is lowered: what cannot be imported is said at once.
    translated = {entry: translate(program) for entry, program in exported.items()}
    for entry_name, program in exported.items():
        entry = _import_entry(program, translated[entry_name], table, weights)
        entries[entry_name] = entry
        for binding in entry.state:
            _add_state(state, binding.state, entry)
    return _finish(name, table, weights, entries, state, exported)


def import_relax(module: Any, entry: str = ENTRY) -> ImportedModel:
    """Import a Relax module.

    Parameters
    ----------
    module
        A ``tvm.IRModule``.
    entry
        Its function to import; parameters after the attribute ``num_input`` are inputs, too,
        because their values are not known here.

    Raises
    ------
    InputError
        If the module has no Relax function of that name.
    UnsupportedOperatorError
        If it cannot be lowered to operators.
    """
    module = _with_entry(module, entry)
    table = OperatorTable()
    weights = WeightTable()
    lowered = lower(module, entry)
    flattener = _flattener(entry, lowered, table, weights, _RelaxGuide(lowered))
    tensors = {
        parameter: FunctionTensor(str(parameter.name), "input") for parameter in lowered.main.params
    }
    flat, outputs = flattener.flatten(lowered.main, tensors, _bounds(lowered.main))
    finished = with_donations(replace(flat, outputs=outputs), table)
    return _finish(entry, table, weights, {entry: finished}, {}, {})


def _with_entry(module: Any, entry: str) -> Any:
    import tvm
    from tvm import relax

    functions = {variable.name_hint: f for variable, f in module.functions_items()}
    function = functions.get(entry)
    if not isinstance(function, relax.Function):
        known = ", ".join(n for n, f in functions.items() if isinstance(f, relax.Function))
        raise InputError(
            f"the Relax module has no function {entry!r}; it has: {known or 'no Relax function'}"
        )
    if entry == ENTRY:
        return module
    renamed = {
        (tvm.ir.GlobalVar(ENTRY) if variable.name_hint == entry else variable): f
        for variable, f in module.functions_items()
        if variable.name_hint != ENTRY
    }
    main = next(variable for variable in renamed if variable.name_hint == ENTRY)
    renamed[main] = function.with_attr("global_symbol", ENTRY)
    return tvm.IRModule(renamed, attrs=module.attrs)


def _finish(
    name: str,
    table: OperatorTable,
    weights: WeightTable,
    entries: dict[str, Entry],
    state: dict[str, TensorSpecification],
    exported: dict[str, ExportedEntry],
) -> ImportedModel:
    import tvm

    plan = GraphPlan(
        name=name,
        operators=table.finish(),
        entries=entries,
        weights=dict(weights.specifications),
        state=state,
        metadata={"tvm": tvm.__version__, "torch": torch.__version__},
    )
    check_plan(plan)
    return ImportedModel(plan, weights.arrays, exported)


def _import_entry(
    exported: ExportedEntry,
    translated: TranslatedEntry,
    table: OperatorTable,
    weights: WeightTable,
) -> Entry:
    description = exported.description
    lowered = lower(translated.module, description.name)
    guide = _TorchGuide(exported, translated.names, lowered)
    flattener = _flattener(description.name, lowered, table, weights, guide)
    flat, outputs = flattener.flatten(
        lowered.main, _tensors(exported, lowered, weights), _bounds(lowered.main)
    )
    return with_donations(_with_signature(flat, outputs, description, table), table)


def _flattener(
    name: str, lowered: LoweredEntry, table: OperatorTable, weights: WeightTable, guide: Any
) -> Flattener:
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
    """Which parameter of the function is an input, a state tensor or a weight."""
    description = exported.description
    state = {index: name for name, index, _ in description.state}
    parameters = list(lowered.main.params)
    count = int(lowered.main.attrs["num_input"])
    names = description.input_names or tuple(str(p.name) for p in parameters[:count])
    if len(names) != count:
        raise InputError(
            f"{description.name!r} takes {count} tensors, but {len(names)} input names are given"
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


def _with_signature(
    entry: Entry, outputs: tuple[str, ...], description: EntryDescription, table: OperatorTable
) -> Entry:
    """Sort a function's results into outputs and state, and mark what writes state."""
    after = {index: name for name, _, index in description.state}
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


def _add_state(state: dict[str, TensorSpecification], name: str, entry: Entry) -> None:
    value = entry.values[name]
    if not all(isinstance(extent, int) for extent in value.shape):
        raise InputError(f"state {name!r} has a dynamic shape {value.shape}; expected a fixed one")
    specification = TensorSpecification(name, value.shape, value.dtype)  # type: ignore[arg-type]
    if state.setdefault(name, specification) != specification:
        raise InputError(
            f"state {name!r} differs between entries: {state[name]} and {specification}"
        )


def _bounds(main: Any) -> tuple[SymbolBounds, ...]:
    attributes = dict(main.attrs) if main.attrs else {}
    lower_bounds: Mapping[Any, Any] = attributes.get("tir_var_lower_bound") or {}
    upper_bounds: Mapping[Any, Any] = attributes.get("tir_var_upper_bound") or {}
    uppers = {str(name): int(value) for name, value in upper_bounds.items()}
    return tuple(
        SymbolBounds(str(name), int(value), uppers.get(str(name)))
        for name, value in lower_bounds.items()
    )


class _TorchGuide:
    """Names values after FX nodes and gives call sites the origins of what was fused in them."""

    def __init__(self, exported: ExportedEntry, names: NodeNames, lowered: LoweredEntry) -> None:
        self._origins = exported.origins
        self._names = names
        self._lowered = lowered
        self._following = _following(lowered, names)

    def site(self, index: int, callee: str) -> CallSite:
        provenance = self._lowered.provenance[index]
        nodes: dict[str, None] = {}
        for variable in provenance.variables:
            for part in self._lowered.contractions.get(variable, (variable,)):
                node = self._names.node(part) or self._following[index]
                if node is not None:
                    nodes[node] = None
        origins: tuple[Origin, ...] = tuple(self._origins[node] for node in nodes)
        path = origins[-1].module_path if origins else ""
        return CallSite(
            results=tuple(self.view(variable) for variable in provenance.results),
            origins=origins,
            layer=layer_of(path),
            path=path.removeprefix("model."),
        )

    def view(self, variable: str) -> str:
        return self._names.value(variable)


def _following(lowered: LoweredEntry, names: NodeNames) -> list[str | None]:
    """For each call the node of the first named variable from it on.

    Where a pass makes two calls of one, the last keeps the name and the first gets one of no node.
    """
    found: list[str | None] = []
    following: str | None = None
    for provenance in reversed(lowered.provenance):
        for variable in reversed(provenance.variables):
            following = names.node(variable) or following
        found.append(following)
    return found[::-1]


class _RelaxGuide:
    """Names values after the variables of a Relax module, which has no other origins."""

    def __init__(self, lowered: LoweredEntry) -> None:
        self._lowered = lowered

    def site(self, index: int, callee: str) -> CallSite:
        return CallSite(results=self._lowered.provenance[index].results)

    def view(self, variable: str) -> str:
        return variable
