"""Imports a model as a GraphPlan.

This module takes each entry through torch.export, decompositions, Relax, fusion and flattening,
each of which has its own module, and joins the entries of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

from tapml.importing.cache import PlanCache, import_key
from tapml.importing.donation import with_donations
from tapml.importing.entry_import import add_state, bounds_of, flattener_for, import_entry
from tapml.importing.exporting import EntryDescription, ExportedEntry, export_entry
from tapml.importing.flatten import FunctionTensor
from tapml.importing.guides import RelaxGuide
from tapml.importing.imported import CONSTANT, ImportedModel
from tapml.importing.lowering import lower
from tapml.importing.operators import OperatorTable
from tapml.importing.relax_function import ENTRY
from tapml.importing.translate import translate
from tapml.importing.weights import WeightTable, to_numpy
from tapml.models.mlc_model import MlcModel
from tapml.models.onnx_file import OnnxModel
from tapml.models.stored import MODULE
from tapml.plan.graph_plan import Entry, GraphPlan, TensorSpecification
from tapml.plan.plan_notes import BRANCHES
from tapml.plan.validation import check_plan
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.importing.imported import RootProgram
    from tapml.models.loaded import Loaded

Array = npt.NDArray[Any]


def import_model(
    model: Loaded,
    *,
    cache: PlanCache | None = None,
    begins: Callable[[], object] = lambda: None,
) -> ImportedModel:
    """Import a model: its entries share operators, weights and state.

    Parameters
    ----------
    cache
        Cache of finished plans; if None, the model is always imported.
    begins
        Called on a cache miss, before the import starts.

    Raises
    ------
    UnsupportedOperatorError
        If the model uses operators that cannot be imported; all are named with their lines.
    """
    key = import_key(model)
    known = cache.get_plan(key) if cache is not None else None
    if known is not None:
        plan, constants = known
        onnx = _onnx(model)
        weights = (onnx.onnx_weights if onnx else weights_of)(model, plan, constants)
        return ImportedModel(plan, weights)
    begins()
    imported = _import(model)
    if cache is not None:
        constants = {
            name: array for name, array in imported.weights.items() if name.startswith(CONSTANT)
        }
        cache.put_plan(key, imported.plan, constants)
    return imported


def _import(model: Loaded) -> ImportedModel:
    if (onnx := _onnx(model)) is not None:
        found: ImportedModel = onnx.import_onnx(model)
        return found
    if isinstance(model, MlcModel):
        from tapml.importing.mlc_import import import_mlc

        return import_mlc(model)
    return import_entries(model.name, descriptions_of(model))


def export_model(model: Loaded) -> Mapping[str, RootProgram]:
    """The programs of a model's entries by name, to root a plan from the cache."""
    if isinstance(model, OnnxModel):
        from tapml.importing.onnx_entry import onnx_entry

        return {MODULE: onnx_entry(model)}
    if isinstance(model, MlcModel):
        from tapml.importing.mlc_import import mlc_entries

        return mlc_entries(model)
    return {each.name: export_entry(each) for each in descriptions_of(model)}


def _onnx(model: Loaded) -> Any:
    """What imports an ONNX model; None for a torch module."""
    if not isinstance(model, OnnxModel):
        return None
    from tapml.importing import onnx_import

    return onnx_import


def descriptions_of(model: Loaded) -> list[EntryDescription]:
    """What is exported of a model, entry by entry."""
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
                program=module.program,
                takes_branches=True,
            )
        )
    return descriptions


def weights_of(model: Loaded, plan: GraphPlan, constants: dict[str, Array]) -> dict[str, Array]:
    """The weights of a cached plan: the model's parameters and the plan's constants."""
    named = model.tensors()
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
            In evaluation mode.
    example_inputs
        Positional tensors.
    name
        Name of the plan and of its entry.
    dynamic
        ``dynamic_shapes`` of ``torch.export.export``.

    Raises
    ------
    InputError
            If torch.export refuses the module.
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
    # Translate every entry before lowering any, so that unsupported operators are reported early.
    translated = {entry: translate(program) for entry, program in exported.items()}
    for entry_name, program in exported.items():
        entry = import_entry(program, translated[entry_name], table, weights)
        entries[entry_name] = entry
        for binding in entry.state:
            add_state(state, binding.state, entry)
    return _finish(name, table, weights, entries, state, exported)


def import_relax(module: Any, entry: str | None = None) -> ImportedModel:
    """Import a Relax module.

    Parameters
    ----------
    module
        A ``tvm.IRModule``.
    entry
        The function to import; if None, ``main`` or the only one. Parameters after the attribute
        ``num_input`` become inputs, too, because their values are not known here.

    Raises
    ------
    InputError
            If the module has no Relax function of that name, or several and `entry` is None.
    UnsupportedOperatorError
        If it cannot be lowered to operators.
    """
    entry = entry or _only_function(module)
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


def _only_function(module: Any) -> str:
    functions = _relax_functions(module)
    if ENTRY in functions or not functions:
        return ENTRY
    if len(functions) > 1:
        raise InputError(
            f"the Relax module has several functions ({', '.join(functions)}); name one with entry="
        )
    return next(iter(functions))


def _relax_functions(module: Any) -> dict[str, Any]:
    from tvm import relax

    return {
        variable.name_hint: function
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
    }


def _with_entry(module: Any, entry: str) -> Any:
    import tvm

    functions = _relax_functions(module)
    function = functions.get(entry)
    if function is None:
        known = ", ".join(functions) or "no Relax function"
        raise InputError(f"the Relax module has no function {entry!r}; it has: {known}")
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

    branches = dict.fromkeys(line for each in exported.values() for line in each.branches)
    plan = GraphPlan(
        name=name,
        operators=table.finish(),
        entries=entries,
        weights=dict(weights.specifications),
        state=state,
        metadata={
            "tvm": tvm.__version__,
            "torch": torch.__version__,
            **({BRANCHES: ", ".join(branches)} if branches else {}),
        },
    )
    check_plan(plan)
    return ImportedModel(plan, weights.arrays, exported)
