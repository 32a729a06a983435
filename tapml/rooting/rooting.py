"""Rooting compares a plan's operators and logits with PyTorch before anything relies on them.

The paper's reference is trusted after years of use. Ours comes from an importer and a compiler, so
it is compared with the torch program it was made from. There are two passes per entry:

* by operator: each call gets the inputs *torch* computed, if torch has them, and its output is
  compared with torch's. Errors do not accumulate, so the bound is tight and the wrong operator is
  named;
* end to end: the plan runs on its own, and its outputs and state are compared. What is beyond the
  bound there has to be what the operators' own errors make of them
  (:mod:`tapml.rooting.conditioning`).

The torch program is our wrapper's, which :mod:`tapml.rooting.own_forward` compares with the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tapml.importing.cache import PlanCache, rooting_key
from tapml.importing.imported import ImportedModel, OtherProgram, RootProgram
from tapml.plan.graph_plan import Body, CallStep, Entry, GraphPlan, Operator
from tapml.plan.rooting_report import STEP_TOLERANCE, Rooted, RootingReport, check, compare
from tapml.rooting.conditioning import moved_by_errors
from tapml.rooting.interpreter import Functions, run_entry
from tapml_targets.errors import InputError, MismatchError

if TYPE_CHECKING:
    from tapml.models.loaded import Loaded

Array = npt.NDArray[Any]


@dataclass
class _Comparisons:
    done: list[Rooted] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def root(
    model: Loaded,
    imported: ImportedModel,
    *,
    reference: Functions | None = None,
    prompt: Sequence[int] | None = None,
    cache: PlanCache | None = None,
    device: str = "",
) -> RootingReport:
    """Compare a model's plan with PyTorch: a decoder's in prefill, then a decode step on its state.

    Its wrapper is compared with the model's own forward first.

    Parameters
    ----------
    model
        The imported model.
    imported
        Its import. If it came from the cache, the model is exported again.
    reference
        The plan's operators on the reference; compiled for this process if None.
    prompt
        For a decoder: at least three tokens; None takes tokens spread over the vocabulary.
    cache
        Cache of reports by model, plan, versions, prompt and processor. Pass None with a
        `reference` that the compiler did not make from the plan.
    device
        Identifies the reference's device and kernels; empty if it is this process.

    Raises
    ------
    InputError
            If the prompt is too short or does not fit the model.
    MismatchError
        Naming the operators that differ, worst first, with the lines they come from; or the entry
        and step where the wrapper differs from the model.
    """
    runs = model.rooting_runs(prompt)
    key = _key(imported.plan, model, runs, device) if cache is not None else ""
    known = cache.get_rooting(key) if cache is not None else None
    if known is not None:
        return known
    from tapml.importing.importer import export_model
    from tapml.rooting.own_forward import root_wrapper

    root_wrapper(model)
    if not imported.exported:
        imported = replace(imported, exported=export_model(model))
    report = root_runs(imported, runs, reference=reference, state=model.empty_state())
    if cache is not None:
        cache.put_rooting(key, report)
    return report


def root_runs(
    imported: ImportedModel,
    runs: Sequence[tuple[str, Mapping[str, Array]]],
    *,
    reference: Functions | None = None,
    state: Mapping[str, Array] | None = None,
) -> RootingReport:
    """Compare runs of entries, each on the state that the previous run left.

    Raises
    ------
    InputError
            If the plan came from the cache or from Relax, since it then has no torch program.
    MismatchError
        If an operator or an output differs by more than its tolerance.
    """
    exported = exported_programs(imported)
    functions = reference if reference is not None else _compile(imported)
    state = dict(state or {})
    comparisons = _Comparisons()
    for name, inputs in runs:
        entry = imported.plan.entries[name]
        tensors = {**imported.weights, **state, **inputs}
        program = exported[name]
        recorded, outputs = run_program(program, entry, tensors)
        plan = imported.plan
        before = len(comparisons.done)
        _compare_operators(plan, entry, functions, tensors, recorded, comparisons)
        operators = comparisons.done[before:]
        values = run_entry(entry, functions, tensors)
        _compare_outputs(plan, entry, program.state, values, outputs, comparisons)
        wrong = [each for each in comparisons.done[before:] if each.ratio > 1]
        if wrong and all(each.kind == "output" for each in wrong):
            moved = moved_by_errors(entry, functions, tensors, operators, values)
            comparisons.done[before:] = [
                each.explained_up_to(moved.get(each.value, 0.0)) if each in wrong else each
                for each in comparisons.done[before:]
            ]
        state |= {binding.state: values[binding.after] for binding in entry.state}
    check(comparisons.done)
    return RootingReport(tuple(comparisons.done), tuple(comparisons.skipped))


def run_program(
    program: RootProgram, entry: Entry, tensors: Mapping[str, Array]
) -> tuple[Mapping[str, Array], Sequence[Array]]:
    """The values inside of a program by their names, and its outputs."""
    if isinstance(program, OtherProgram):
        return program.run(entry, tensors)
    # A recorded rooting is compared where there is no PyTorch.
    from tapml.rooting.torch_run import run_torch

    run = run_torch(program, entry, tensors)
    return run.recorded, run.outputs


def exported_programs(imported: ImportedModel) -> Mapping[str, RootProgram]:
    """What a model's entries are rooted in.

    Raises
    ------
    InputError
        If it has nothing.
    """
    if not imported.exported:
        raise InputError(
            "this plan has no torch program (it was read from the cache or comes from "
            "Relax): import the model again to root it"
        )
    return imported.exported


def _compile(imported: ImportedModel) -> Functions:
    from tapml.compiler.reference import compile_reference

    return compile_reference(imported.plan)


def _key(
    plan: GraphPlan, model: Loaded, runs: Sequence[tuple[str, Mapping[str, Array]]], device: str
) -> str:
    from tapml.compiler.host_build import host_identity

    hashes = [
        hashlib.sha256(each.tobytes()).hexdigest() for _, inputs in runs for each in inputs.values()
    ]
    host = host_identity()
    return rooting_key(plan, model.weights_hash, hashes, f"{host} {device}" if device else host)


def _compare_operators(
    plan: GraphPlan,
    entry: Entry,
    functions: Functions,
    tensors: Mapping[str, Array],
    recorded: Mapping[str, Array],
    comparisons: _Comparisons,
) -> None:
    makers = makers_of(plan, entry)
    compared: set[str] = set()
    read = _read(plan, entry)

    def replace(name: str, array: Array) -> Array:
        call = makers.get(name)
        # An operation with several results may be imported as the first of them alone.
        torch_value = recorded.get(name, recorded.get(f"{name}[0]"))
        if call is None or torch_value is None or torch_value.size != array.size:
            return array
        # In this order: what is contiguous has an axis at least, and a scalar has none.
        torch_value = np.ascontiguousarray(torch_value).reshape(array.shape)
        if name not in read:
            # Of equal values, any order is right, and nothing reads which one it is.
            return torch_value
        # A view of a compared value already has torch's data.
        if name in call.arguments or call.site not in compared:
            compared.add(call.site)
            data_type = entry.values[name].dtype
            rounded_to = _coarsest(plan.operators[call.operator], data_type)
            compared_here = compare(
                "operator",
                entry.name,
                name,
                call,
                array,
                torch_value,
                data_type,
                rounded_to=rounded_to,
            )
            comparisons.done.append(compared_here)
        return torch_value

    run_entry(entry, functions, tensors, replace)
    comparisons.skipped += [
        (call.site, "torch's program computes none of its values")
        for call in entry.calls
        if call.site not in compared
    ]


def _coarsest(operator: Operator, data_type: str) -> str:
    """The coarsest floating-point dtype among a fused operator's intermediates.

    A half cast to float32 is only as exact as a half.
    """
    body = operator.body
    if body is None or data_type not in STEP_TOLERANCE:
        return data_type
    inside = (body.entry.values[name].dtype for name in makers_of(body, body.entry))
    return max((data_type, *inside), key=lambda each: STEP_TOLERANCE.get(each, 0.0))


def _read(plan: GraphPlan, entry: Entry) -> frozenset[str]:
    """Values that a call, a view, the caller or the next run reads."""
    found = {*entry.outputs, *(binding.after for binding in entry.state)}
    for step in entry.steps:
        if isinstance(step, CallStep):
            written = len(plan.operators[step.operator].written)
            found.update(step.arguments[: len(step.arguments) - written])
        else:
            found.add(step.source)
    return frozenset(found)


def makers_of(plan: GraphPlan | Body, entry: Entry) -> dict[str, CallStep]:
    """The call that computes each value, through views."""
    found: dict[str, CallStep] = {}
    for step in entry.steps:
        if isinstance(step, CallStep):
            written = len(plan.operators[step.operator].written)
            found.update(dict.fromkeys(step.arguments[-written:], step))
        elif step.source in found:
            found[step.result] = found[step.source]
    return found


def _compare_outputs(
    plan: GraphPlan,
    entry: Entry,
    bindings: Sequence[tuple[str, int, int]],
    values: Mapping[str, Array],
    expected: Sequence[Array],
    comparisons: _Comparisons,
) -> None:
    makers = makers_of(plan, entry)
    after = {binding.state: binding.after for binding in entry.state}
    state = {index: after[name] for name, _, index in bindings}
    outputs = iter(entry.outputs)
    for index, torch_value in enumerate(expected):
        name = state[index] if index in state else next(outputs)
        array, data_type = values[name], entry.values[name].dtype
        if torch_value.size != array.size:
            maker = makers.get(name)
            raise MismatchError(
                f"the imported plan's {name} of {entry.name} has the shape {array.shape}, and "
                f"PyTorch's has {torch_value.shape}"
                + (f": it is made at {maker.site}, which is imported wrongly" if maker else "")
            )
        comparisons.done.append(
            compare(
                "output",
                entry.name,
                name,
                makers.get(name),
                array,
                torch_value.reshape(array.shape),
                data_type,
            )
        )
