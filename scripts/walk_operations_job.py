"""The worker of scripts/walk_operations.py: one operation of PyTorch, with its own samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree

from scripts.support_operators import Called
from tapml.compiler.compiler import Compiler
from tapml.compiler.link import link_entries
from tapml.compiler.reference import compile_reference
from tapml.execute.executor import Executor
from tapml.execute.plan_runner import PlanRunner
from tapml.importing.fixed_results import decided_results
from tapml.importing.importer import import_module
from tapml.importing.module import Module
from tapml.matrix.compiling import compile_for_all, refusal
from tapml.matrix.implementation import Column
from tapml_rpc.local import open_local
from tapml_targets.errors import DeviceLostError, InputError, TapmlError
from tapml_targets.library import Library
from tapml_targets.ranking import rank_devices

Array = NDArray[Any]
OPEN: Final = "scripts.walk_operations_job:Walker"
WALK: Final = "scripts.walk_operations_job:walk"
REFERENCE: Final = "cpu"
# Of a sample's tensors together, and of samples that are looked at.
_MOST_ELEMENTS: Final = 20_000
_LOOKED_AT: Final = 200
_SECONDS: Final = 20.0
# Of the largest number of the expected result, and of each number.
_ABSOLUTE: Final = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 2e-5}
_RELATIVE: Final = {"float16": 8e-3, "bfloat16": 6e-2, "float32": 2e-4, "float64": 2e-4}
_ODD: Final = (math.nan, math.inf, -math.inf, 0.0, -0.0)


def name_of(entry: Any) -> str:
    """An entry of PyTorch's list by its name and variant."""
    return f"{entry.name}/{entry.variant_test_name}" if entry.variant_test_name else str(entry.name)


def names(_: None = None) -> list[str]:
    """Of all entries, each once, without those that are PyTorch's own for its references."""
    return list(dict.fromkeys(name_of(each) for each in op_db))


class Walker:
    """Keeps its devices open between operations.

    Parameters
    ----------
    devices
        Specifications such as ``vulkan:0``, of devices of this machine.
    """

    def __init__(self, devices: list[str]) -> None:
        torch.set_num_threads(1)
        self.columns: dict[str, Column] = {}
        for spec in devices:
            ranked = {each.spec: each for each in rank_devices(spec.partition(":")[0])}
            if spec not in ranked:
                raise InputError(f"there is no device {spec}: `tapml devices` lists what is here")
            self.columns[spec] = Column(spec, partial(open_local, ranked[spec].description))
        self.compiler = Compiler(workers=1) if devices else None


def walk(walker: Walker, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the samples of an entry; what came of each.

    `asked` has `name`, `dtype`, `samples` (how many) and `odd` (whether one more has NaN and
    infinities). A result has `sample`, and `found` by device, the processor as ``cpu``: ``pass``,
    or ``refused``, ``wrong`` or ``broken`` with a colon and why.
    """
    entry = next(each for each in op_db if name_of(each) == asked["name"])
    kind = getattr(torch, asked["dtype"])
    if not entry.supports_dtype(kind, "cpu"):
        return []
    torch.manual_seed(17)
    begun = time.monotonic()
    results: list[dict[str, Any]] = []
    for sample in _samples(entry, kind, asked["samples"], asked["odd"]):
        if results and time.monotonic() - begun > _SECONDS * (1 + len(walker.columns)):
            break
        results.append(_tried(walker, entry, sample))
    return [each for each in results if each]


class _Sample:
    """Arguments of an operation: tensors in their order, and where they stand."""

    def __init__(self, given: Any, odd: bool = False) -> None:
        whole = (given.input, tuple(given.args), dict(given.kwargs))
        flat, self.structure = _pytree.tree_flatten(whole)
        self.places = [at for at, each in enumerate(flat) if isinstance(each, torch.Tensor)]
        self.rest = flat
        self.tensors = [flat[at].detach().clone().contiguous() for at in self.places]
        self.odd = odd and self._made_odd()

    def _made_odd(self) -> bool:
        floats = [each for each in self.tensors if each.is_floating_point() and each.numel() > 4]
        for each in floats:
            flat = each.view(-1)
            flat[: len(_ODD)] = torch.tensor(_ODD, dtype=each.dtype)[: len(flat)]
        return bool(floats)

    @property
    def elements(self) -> int:
        return sum(each.numel() for each in self.tensors)

    @property
    def shape_of_call(self) -> str:
        """What makes a sample another one than the last."""
        rest = [each for at, each in enumerate(self.rest) if at not in self.places]
        ranks = [(each.dim(), 0 in each.shape, str(each.dtype)) for each in self.tensors]
        return f"{self.structure} {ranks} {[type(each).__name__ for each in rest]}"

    def called(self, function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        flat = list(self.rest)
        for at, each in zip(self.places, tensors, strict=True):
            flat[at] = each
        operand, arguments, options = _pytree.tree_unflatten(flat, self.structure)
        return function(operand, *arguments, **options)

    def __str__(self) -> str:
        shown = list(self.rest)
        for at, each in zip(self.places, self.tensors, strict=True):
            shown[at] = _Shown(f"{str(each.dtype)[6:]}{list(each.shape)}")
        operand, arguments, options = _pytree.tree_unflatten(shown, self.structure)
        words = [repr(operand), *map(repr, arguments), *(f"{k}={v!r}" for k, v in options.items())]
        return f"({', '.join(words)}){' with NaN and infinities' if self.odd else ''}"[:300]


class _Shown(str):
    def __repr__(self) -> str:
        return str(self)


def _samples(entry: Any, kind: torch.dtype, count: int, odd: bool) -> Iterator[_Sample]:
    """Small ones, first those that differ in how they are called."""
    every = []
    for given in islice(entry.sample_inputs("cpu", kind), _LOOKED_AT):
        whole = _pytree.tree_leaves((given.input, given.args, given.kwargs))
        if any(isinstance(each, torch.Tensor) and each.layout != torch.strided for each in whole):
            continue
        sample = _Sample(given)
        if sample.tensors and sample.elements <= _MOST_ELEMENTS:
            every.append((sample, given))
    seen: dict[str, int] = {}
    ranked = []
    for at, (sample, given) in enumerate(every):
        again = seen[sample.shape_of_call] = seen.get(sample.shape_of_call, -1) + 1
        ranked.append((again, at, sample, given))
    ranked.sort(key=lambda each: each[:2])
    yield from (sample for _, _, sample, _ in ranked[:count])
    if odd:
        made = (_Sample(given, odd=True) for _, _, _, given in ranked)
        yield from islice((each for each in made if each.odd), 1)


@contextmanager
def _quiet() -> Iterator[None]:
    import warnings

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _tried(walker: Walker, entry: Any, sample: _Sample) -> dict[str, Any]:
    function = entry.op
    module = Called(partial(sample.called, function)).eval()
    with _quiet():
        try:
            with decided_results():
                given = module(*(each.clone() for each in sample.tensors))
        except TapmlError as error:  # one of the functions whose results are decided
            return {"sample": str(sample), "found": {REFERENCE: f"refused: {_line(error)}"}}
        except Exception:  # PyTorch itself refuses it, as it does some with NaN
            return {}
        wanted = [each for each in _pytree.tree_leaves(given) if isinstance(each, torch.Tensor)]
    found: dict[str, str] = {}
    result: dict[str, Any] = {"sample": str(sample), "found": found}
    if not wanted:
        return {}
    try:
        with _quiet():
            made = import_module(module, [each.clone() for each in sample.tensors])
        plan = Module(made.plan, weights=made.weights)
    except TapmlError as error:
        found[REFERENCE] = f"refused: {_line(error)}"
        return result
    except Exception as error:  # what no import may end with
        found[REFERENCE] = f"broken: {type(error).__name__}: {_line(error)}"
        return result
    arrays = [_array(each) for each in sample.tensors]
    graph = plan.graph
    if len(arrays) != len(graph.inputs):
        found[REFERENCE] = f"broken: {len(arrays)} tensors, {len(graph.inputs)} inputs"
        return result
    inputs = dict(zip(graph.inputs, arrays, strict=True))
    result["operators"] = len(plan.plan.operators)

    def on_processor() -> list[Array]:
        executor = Executor(plan.plan, plan.weights, compile_reference(plan.plan))
        outputs = executor.run(plan.entry, inputs)
        return [np.array(outputs[name]) for name in graph.outputs]

    found[REFERENCE] = _judged(on_processor, wanted)
    for spec, column in walker.columns.items():
        found[spec] = _judged(partial(_on_device, walker, column, plan, inputs), wanted)
    return result


class _RefusedError(Exception):
    """A kernel is beyond a device's limits, or is refused by its generator."""


def _on_device(
    walker: Walker, column: Column, plan: Module, inputs: dict[str, Array]
) -> list[Array]:
    if column.session is None:
        column.open()
    if column.session is None or walker.compiler is None:
        raise RuntimeError(column.problem)
    operators = list(plan.plan.operators.values())
    libraries = compile_for_all(walker.compiler, operators, [column])[column.platform]
    for each in libraries.values():
        if reason := refusal(each, column):
            raise _RefusedError(reason)
    linked = link_entries(plan.plan, cast("dict[str, Library]", libraries))
    try:
        with PlanRunner(plan.plan, plan.weights, linked, column.session) as runner:
            outputs = runner.run(plan.entry, inputs)
            return [np.array(outputs[name]) for name in plan.graph.outputs]
    except DeviceLostError:
        column.close()
        column.session = None
        raise


def _judged(run: Callable[[], list[Array]], wanted: list[torch.Tensor]) -> str:
    try:
        found = run()
    except _RefusedError as error:
        return f"refused: {_line(error)}"
    except Exception as error:
        return f"broken: {type(error).__name__}: {_line(error)}"
    if len(found) != len(wanted):
        return f"wrong: {len(found)} results, PyTorch has {len(wanted)}"
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if difference := _difference(one, other):
            return f"wrong: result {place}: {difference}"
    return "pass"


def _difference(found: Array, wanted: torch.Tensor) -> str:
    """How a result differs from PyTorch's; empty if it does not."""
    kind = str(wanted.dtype)[6:]
    plain = wanted.detach().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain, kind = torch.view_as_real(plain), str(torch.view_as_real(plain).dtype)[6:]
    if tuple(found.shape) != tuple(plain.shape):
        return f"its shape is {tuple(found.shape)}, PyTorch's {tuple(plain.shape)}"
    expected = _array(plain)
    if kind == "bfloat16" and found.dtype == np.uint16:
        found = (found.astype(np.uint32) << 16).view(np.float32)
        expected = (expected.astype(np.uint32) << 16).view(np.float32)
    elif found.dtype != expected.dtype:
        return f"its dtype is {found.dtype}, PyTorch's {expected.dtype}"
    if not plain.is_floating_point():
        wrong = found != expected
    else:
        one, other = found.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(other)
        largest = float(np.abs(other[finite]).max(initial=0))
        with np.errstate(invalid="ignore"):
            near = np.abs(one - other) <= _ABSOLUTE[kind] * min(max(largest, 1e-30), 1e30) + (
                _RELATIVE[kind] * np.abs(other)
            )
        wrong = ~np.where(finite, near, (one == other) | (np.isnan(one) & np.isnan(other)))
    if not wrong.any():
        return ""
    at = tuple(int(each) for each in np.argwhere(wrong)[0])
    count = f"{int(wrong.sum())} of {wrong.size}"
    return f"{count} differ, first {list(at)}: {found[at]!r}, PyTorch's {expected[at]!r}"


def _array(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.uint16).numpy().copy()
    array: Array = tensor.contiguous().numpy().copy()
    return array


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
