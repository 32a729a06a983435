"""Rooting: a plan's operators and logits against PyTorch, before anything is built on them.

The paper's reference is trusted because it has been used for years; ours comes out of an importer
and a compiler, so it is compared with the torch program it was made from. Two passes per entry:

* operator by operator: each call gets the inputs *torch* computed, where torch has them, and its
  output is compared with torch's. Errors do not add up, so the bound is tight and a wrong operator
  is the one that is named;
* as a whole: the plan runs on its own, and its outputs and state are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from tapml.graph.exporting import ExportedEntry
from tapml.graph.importer import ImportedModel
from tapml.graph.interpreter import Functions, run_entry
from tapml.graph.plan import CallStep, Entry, GraphPlan
from tapml.graph.weights import to_numpy
from tapml_targets.errors import InputError, MismatchError

if TYPE_CHECKING:
    from tapml.models.loaded import LoadedModel

Array = npt.NDArray[Any]

# Largest error of one operator and of a whole run, relative to the largest element. One operator
# sums a few thousand products; half precision rounds once where torch rounds after every step.
STEP_TOLERANCE: Final = {"float64": 1e-12, "float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}
RUN_TOLERANCE: Final = {"float64": 1e-10, "float32": 1e-3, "float16": 5e-2, "bfloat16": 4e-1}
_TINY: Final = 1e-30
_PROMPT: Final = 7
_SHOWN: Final = 5


@dataclass(frozen=True)
class Rooted:
    """One comparison with torch.

    Attributes
    ----------
    kind
        ``operator`` or ``output`` (of the whole run, state included).
    entry, value
        Entry and value compared.
    site, operator
        The call that made it; empty for an output that no call made.
    source
        Where in the model it was written.
    error
        Largest absolute difference.
    scale
        Largest magnitude torch has there.
    ratio
        Error over what is allowed; above 1 it does not match.
    """

    kind: Literal["operator", "output"]
    entry: str
    value: str
    site: str
    operator: str
    source: str
    error: float
    scale: float
    ratio: float


@dataclass(frozen=True)
class RootingReport:
    """What was compared with torch.

    Attributes
    ----------
    compared
        Every comparison, in order.
    not_comparable
        (call site, why) of calls none of whose values exists in torch's program.
    """

    compared: tuple[Rooted, ...]
    not_comparable: tuple[tuple[str, str], ...] = ()

    @property
    def worst(self) -> Rooted | None:
        """The comparison that came closest to its bound."""
        return max(self.compared, key=lambda each: each.ratio, default=None)

    @property
    def operators(self) -> dict[str, float]:
        """Worst ratio by operator."""
        found: dict[str, float] = {}
        for each in self.compared:
            if each.kind == "operator":
                found[each.operator] = max(found.get(each.operator, 0.0), each.ratio)
        return found

    @property
    def sites(self) -> int:
        """Number of call sites that were compared."""
        return len({each.site for each in self.compared if each.kind == "operator"})

    def as_json(self) -> dict[str, Any]:
        """Plain data for reports."""
        return {
            "compared_values": len(self.compared),
            "compared_sites": self.sites,
            "not_comparable": [list(each) for each in self.not_comparable],
            "operators": self.operators,
            "outputs": [asdict(each) for each in self.compared if each.kind == "output"],
            "worst": None if self.worst is None else asdict(self.worst),
        }


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
) -> RootingReport:
    """Compare a language model's plan with PyTorch: prefill, then one decode step on its state.

    Parameters
    ----------
    model
        What was imported.
    imported
        The import, with its exported programs.
    reference
        The plan's operators on this machine; compiled here if None.
    prompt
        Tokens to run; the model's own calibration text, or spread over the vocabulary if None.

    Raises
    ------
    MismatchError
        Naming the operators that differ, worst first, with the lines they come from.
    """
    tokens = list(prompt) if prompt is not None else _default_prompt(model)
    prefill = model.prepare_prefill(tokens[:-1])
    decode = model.prepare_decode(tokens[-1], len(tokens) - 1)
    runs = [("prefill", prefill), ("decode", decode)]
    return root_runs(imported, runs, reference=reference, state=model.empty_state())


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
        torch_run = _run_torch(exported[name], entry, tensors)
        plan = imported.plan
        _compare_operators(plan, entry, functions, tensors, torch_run.recorded, comparisons)
        values = run_entry(entry, functions, tensors)
        _compare_outputs(plan, entry, exported[name], values, torch_run.outputs, comparisons)
        state = {binding.state: values[binding.after] for binding in entry.state}
    _raise_if_different(comparisons)
    return RootingReport(tuple(comparisons.done), tuple(comparisons.skipped))


def _exported(imported: ImportedModel) -> dict[str, ExportedEntry]:
    if not imported.exported:
        raise InputError(
            "this plan has no torch program beside it (it was read from the cache or comes from "
            "Relax): import the model anew to root it"
        )
    return imported.exported


def _compile(imported: ImportedModel) -> Functions:
    from tapml.compiler.reference import compile_reference

    return compile_reference(imported.plan)


def _default_prompt(model: LoadedModel) -> list[int]:
    length = min(_PROMPT, model.context_length)
    return [(index * 7919 + 11) % model.vocabulary for index in range(length)]


class _Recorder(fx.Interpreter):
    """Runs an exported graph and keeps what every node returned."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.recorded: dict[str, Array] = {}
        self.outputs: list[Array] = []

    def run_node(self, node: fx.Node) -> Any:
        """Run one node."""
        result = super().run_node(node)
        if node.op == "output":
            self.outputs = [to_numpy(each)[0] for each in result]
        elif isinstance(result, torch.Tensor):
            self.recorded[node.name] = to_numpy(result)[0]
        elif isinstance(result, tuple | list):
            for index, each in enumerate(result):
                if isinstance(each, torch.Tensor):
                    self.recorded[f"{node.name}[{index}]"] = to_numpy(each)[0]
        return result


def _run_torch(exported: ExportedEntry, entry: Entry, tensors: Mapping[str, Array]) -> _Recorder:
    recorder = _Recorder(exported.program.graph_module)
    inputs = iter(_in_signature_order(exported, entry, tensors))
    arguments = []
    for spec in exported.program.graph_signature.input_specs:
        parameter = exported.parameters.get(spec.arg.name)
        arguments.append(next(inputs) if parameter is None else parameter)
    with torch.no_grad():
        recorder.run(*arguments, enable_io_processing=False)
    return recorder


def _in_signature_order(
    exported: ExportedEntry, entry: Entry, tensors: Mapping[str, Array]
) -> Iterator[torch.Tensor]:
    description = exported.description
    state = {index: name for name, index, _ in description.state}
    inputs = iter(entry.inputs)
    for index, example in enumerate(description.example_inputs):
        name = state[index] if index in state else next(inputs)
        # A copy, because the interpreter's views must not reach the caller's arrays.
        yield torch.tensor(np.array(tensors[name])).view(example.dtype)


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
            comparisons.done.append(
                _compare("operator", entry.name, name, call, array, torch_value, data_type)
            )
        return torch_value

    run_entry(entry, functions, tensors, replace)
    comparisons.skipped += [
        (call.site, "torch's program has none of its values")
        for call in entry.calls
        if call.site not in compared
    ]


def _makers(plan: GraphPlan, entry: Entry) -> dict[str, CallStep]:
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
            _compare(
                "output",
                entry.name,
                name,
                makers.get(name),
                array,
                torch_value.reshape(array.shape),
                data_type,
            )
        )


def _compare(
    kind: Literal["operator", "output"],
    entry: str,
    value: str,
    call: CallStep | None,
    actual: Array,
    expected: Array,
    data_type: str,
) -> Rooted:
    pair = (as_float(actual, data_type).ravel(), as_float(expected, data_type).ravel())
    error, scale = _difference(*pair)
    tolerances = STEP_TOLERANCE if kind == "operator" else RUN_TOLERANCE
    allowed = tolerances.get(data_type, 0.0) * max(scale, _TINY)
    # Integers and booleans have no tolerance: they are equal or infinitely wrong.
    beyond = error / allowed if allowed else float("inf")
    origin = call.origins[-1] if call is not None and call.origins else None
    return Rooted(
        kind=kind,
        entry=entry,
        value=value,
        site=call.site if call is not None else "",
        operator=call.operator if call is not None else "",
        source=f"{origin.source} ({origin.operation})" if origin is not None else "",
        error=error,
        scale=scale,
        ratio=beyond if error else 0.0,
    )


def as_float(array: Array, data_type: str) -> npt.NDArray[np.float64]:
    """Raw values as float64; bfloat16 is the upper half of a float32."""
    if data_type == "bfloat16":
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def _difference(
    actual: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Largest difference and largest magnitude of finite elements; the others must be equal."""
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite]).max(initial=0.0))
    same = np.array_equal(actual[~finite], expected[~finite], equal_nan=True)
    if not same or not np.isfinite(actual[finite]).all():
        return float("inf"), scale
    return float(np.abs(actual[finite] - expected[finite]).max(initial=0.0)), scale


def _raise_if_different(comparisons: _Comparisons) -> None:
    wrong = sorted(
        (each for each in comparisons.done if each.ratio > 1), key=lambda each: -each.ratio
    )
    # An operator that is wrong makes the run wrong; it is the operator that helps.
    shown = [each for each in wrong if each.kind == "operator"] or wrong
    if not shown:
        return
    lines = [
        f"  {each.operator or each.value} at {each.site or each.entry}, written at "
        f"{each.source or 'an unknown line'}: off by {each.error:.3g} where values reach "
        f"{each.scale:.3g}, {each.ratio:.3g} times what is allowed"
        for each in shown[:_SHOWN]
    ]
    more = f"\n  and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    raise MismatchError(
        f"the imported plan differs from PyTorch in {len(shown)} of "
        f"{len(comparisons.done)} comparisons:\n" + "\n".join(lines) + more
    )
