"""A model becomes a GraphPlan.

torch.export, decompositions, Relax, fused PrimFuncs, steps over values: each has a module of its
own; this one takes an entry through them and joins the entries of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

from tapml.graph.cache import PlanCache, import_key
from tapml.graph.donation import with_donations
from tapml.graph.entry_import import add_state, bounds_of, flattener_for, import_entry
from tapml.graph.exporting import EntryDescription, ExportedEntry, export_entry
from tapml.graph.flatten import FunctionTensor
from tapml.graph.guides import RelaxGuide
from tapml.graph.imported import CONSTANT, ImportedModel
from tapml.graph.lowering import lower
from tapml.graph.operators import OperatorTable
from tapml.graph.plan import Entry, GraphPlan, TensorSpecification
from tapml.graph.relax_function import ENTRY
from tapml.graph.translate import translate
from tapml.graph.validate import check_plan
from tapml.graph.weights import WeightTable, to_numpy
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.models.loaded import LoadedModel

Array = npt.NDArray[Any]


def import_model(
    model: LoadedModel,
    *,
    cache: PlanCache | None = None,
    begins: Callable[[], object] = lambda: None,
) -> ImportedModel:
    """Import a language model: its entries share operators, weights and state.

    Parameters
    ----------
    model
        The model.
    cache
        Where the finished plan is looked for and kept; everywhere imported anew if None.
    begins
        Called where the plan is not kept there, before the work begins.

    Raises
    ------
    UnsupportedOperatorError
        If the model uses operators that cannot be imported; all are named with their lines.
    """
    key = import_key(model)
    known = cache.get_plan(key) if cache is not None else None
    if known is not None:
        plan, constants = known
        return ImportedModel(plan, weights_of(model, plan, constants))
    begins()
    imported = import_entries(model.name, _descriptions(model))
    if cache is not None:
        constants = {
            name: array for name, array in imported.weights.items() if name.startswith(CONSTANT)
        }
        cache.put_plan(key, imported.plan, constants)
    return imported


def export_model(model: LoadedModel) -> dict[str, ExportedEntry]:
    """The torch programs of a model's entries by name, for rooting a plan from the cache."""
    return {each.name: export_entry(each) for each in _descriptions(model)}


def _descriptions(model: LoadedModel) -> list[EntryDescription]:
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
    return descriptions


def weights_of(
    model: LoadedModel, plan: GraphPlan, constants: dict[str, Array]
) -> dict[str, Array]:
    """The weights of a plan from the cache: the model's parameters and the plan's constants."""
    parameters = dict(model.module.named_parameters(remove_duplicate=False))
    named = {**dict(model.module.named_buffers()), **parameters}
    return {
        name: constants[name] if name in constants else to_numpy(named[name])[0]
        for name in plan.weights
    }


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
    table = OperatorTable(each.name for each in descriptions)
    weights = WeightTable()
    entries: dict[str, Entry] = {}
    state: dict[str, TensorSpecification] = {}
    exported = {each.name: export_entry(each) for each in descriptions}
    # Every entry is translated before any is lowered: what cannot be imported is said at once.
    translated = {entry: translate(program) for entry, program in exported.items()}
    for entry_name, program in exported.items():
        entry = import_entry(program, translated[entry_name], table, weights)
        entries[entry_name] = entry
        for binding in entry.state:
            add_state(state, binding.state, entry)
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
    table = OperatorTable((entry,))
    weights = WeightTable()
    lowered = lower(module, entry)
    flattener = flattener_for(entry, lowered, table, weights, RelaxGuide(lowered))
    tensors = {
        parameter: FunctionTensor(str(parameter.name), "input") for parameter in lowered.main.params
    }
    flat, outputs = flattener.flatten(lowered.main, tensors, bounds_of(lowered.main))
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
