"""Rooting: a plan's operators and logits against PyTorch, before anything is built on them.

The paper's reference is trusted because it has been used for years; ours comes out of an importer
and a compiler, so it is compared with the torch program it was made from. Two passes per entry:

* operator by operator: each call gets the inputs *torch* computed, where torch has them, and its
  output is compared with torch's. Errors do not add up, so the bound is tight and a wrong operator
  is the one that is named;
* as a whole: the plan runs on its own, and its outputs and state are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tapml.graph.cache import PlanCache, rooting_key
from tapml.graph.exporting import ExportedEntry
from tapml.graph.imported import ImportedModel
from tapml.graph.importer import export_model
from tapml.graph.interpreter import Functions, run_entry
from tapml.graph.plan import Body, CallStep, Entry, GraphPlan, Operator
from tapml.graph.rooting_report import STEP_TOLERANCE, Rooted, RootingReport, check, compare
from tapml.graph.torch_run import run_torch
from tapml.graph.weights import to_numpy
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.models.loaded import LoadedModel

Array = npt.NDArray[Any]

_PROMPT: Final = 7


@dataclass
class _Comparisons:
    done: list[Rooted] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def root(
    model: LoadedModel,
    imported: ImportedModel,
    *,
    reference: Functions | None = None,
    prompt: Sequence[int] | None = None,
    cache: PlanCache | None = None,
) -> RootingReport:
    """Compare a language model's plan with PyTorch: prefill, then one decode step on its state.

    Parameters
    ----------
    model
        What was imported.
    imported
        The import. One that was read from the cache is exported again for this.
    reference
        The plan's operators on this machine; compiled here if None.
    prompt
        Three tokens or more; tokens spread over the vocabulary if None.
    cache
        Where a report of the same model, plan, versions, prompt and processor is looked for and
        kept. Give none for a `reference` that is not what the compiler makes of the plan.

    Raises
    ------
    InputError
        If the prompt is too short or does not fit.
    MismatchError
        Naming the operators that differ, worst first, with the lines they come from.
    """
    tokens = list(prompt) if prompt is not None else _default_prompt(model)
    key = _key(imported.plan, model, tokens) if cache is not None else ""
    known = cache.get_rooting(key) if cache is not None else None
    if known is not None:
        return known
    prefill = model.prepare_prefill(tokens[:-1])
    decode = model.prepare_decode(tokens[-1], len(tokens) - 1)
    if not imported.exported:
        imported = replace(imported, exported=export_model(model))
    runs = [("prefill", prefill), ("decode", decode)]
    report = root_runs(imported, runs, reference=reference, state=model.empty_state())
    if cache is not None:
        cache.put_rooting(key, report)
    return report


def root_module(
    imported: ImportedModel,
    inputs: Sequence[Array] | None = None,
    *,
    reference: Functions | None = None,
) -> RootingReport:
    """Compare the plan of a torch module with the module, on `inputs` or its example inputs.

    Raises
    ------
    MismatchError
        Naming the operators that differ, worst first, with the lines they come from.
    """
    ((name, exported),) = _exported(imported).items()
    entry = imported.plan.entries[name]
    given = inputs or [to_numpy(each)[0] for each in exported.description.example_inputs]
    named = dict(zip(entry.inputs, given, strict=True))
    return root_runs(imported, [(name, named)], reference=reference)


def root_runs(
    imported: ImportedModel,
    runs: Sequence[tuple[str, Mapping[str, Array]]],
    *,
    reference: Functions | None = None,
    state: Mapping[str, Array] | None = None,
) -> RootingReport:
    """Compare runs of entries, each on the state the one before left.

    Raises
    ------
    InputError
        If the plan came from the cache or from Relax: there is no torch program then.
    MismatchError
        If an operator or an output differs by more than its tolerance.
    """
    exported = _exported(imported)
    functions = reference if reference is not None else _compile(imported)
    state = dict(state or {})
    comparisons = _Comparisons()
    for name, inputs in runs:
        entry = imported.plan.entries[name]
        tensors = {**imported.weights, **state, **inputs}
        torch_run = run_torch(exported[name], entry, tensors)
        plan = imported.plan
        _compare_operators(plan, entry, functions, tensors, torch_run.recorded, comparisons)
        values = run_entry(entry, functions, tensors)
        _compare_outputs(plan, entry, exported[name], values, torch_run.outputs, comparisons)
        state = {binding.state: values[binding.after] for binding in entry.state}
    check(comparisons.done)
    return RootingReport(tuple(comparisons.done), tuple(comparisons.skipped))


def _exported(imported: ImportedModel) -> Mapping[str, ExportedEntry]:
    if not imported.exported:
        raise InputError(
            "this plan has no torch program beside it (it was read from the cache or comes from "
            "Relax): import the model anew to root it"
        )
    return imported.exported


def _compile(imported: ImportedModel) -> Functions:
    from tapml.compiler.reference import compile_reference

    return compile_reference(imported.plan)


def _key(plan: GraphPlan, model: LoadedModel, tokens: Sequence[int]) -> str:
    from tapml.compiler.host_build import host_identity

    return rooting_key(plan, model.weights_hash, tokens, host_identity())


def _default_prompt(model: LoadedModel) -> list[int]:
    length = min(_PROMPT, model.context_length)
    return [(index * 7919 + 11) % model.vocabulary for index in range(length)]


def _compare_operators(
    plan: GraphPlan,
    entry: Entry,
    functions: Functions,
    tensors: Mapping[str, Array],
    recorded: Mapping[str, Array],
    comparisons: _Comparisons,
) -> None:
    makers = _makers(plan, entry)
    compared: set[str] = set()

    def replace(name: str, array: Array) -> Array:
        call = makers.get(name)
        # An operation that returns several tensors may be imported as the first of them alone.
        torch_value = recorded.get(name, recorded.get(f"{name}[0]"))
        if call is None or torch_value is None or torch_value.size != array.size:
            return array
        torch_value = np.ascontiguousarray(torch_value.reshape(array.shape))
        # A view of what was compared already holds torch's own values.
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
        (call.site, "torch's program has none of its values")
        for call in entry.calls
        if call.site not in compared
    ]


def _coarsest(operator: Operator, data_type: str) -> str:
    """The coarsest floating-point dtype that a fused operator rounds to on its way to its output.

    What is a half inside and then cast to float32 is as exact as a half.
    """
    body = operator.body
    if body is None or data_type not in STEP_TOLERANCE:
        return data_type
    inside = (body.entry.values[name].dtype for name in _makers(body, body.entry))
    return max((data_type, *inside), key=lambda each: STEP_TOLERANCE.get(each, 0.0))


def _makers(plan: GraphPlan | Body, entry: Entry) -> dict[str, CallStep]:
    """The call that made each value, through views."""
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
    exported: ExportedEntry,
    values: Mapping[str, Array],
    expected: Sequence[Array],
    comparisons: _Comparisons,
) -> None:
    makers = _makers(plan, entry)
    after = {binding.state: binding.after for binding in entry.state}
    state = {index: after[name] for name, _, index in exported.description.state}
    outputs = iter(entry.outputs)
    for index, torch_value in enumerate(expected):
        name = state[index] if index in state else next(outputs)
        array, data_type = values[name], entry.values[name].dtype
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
