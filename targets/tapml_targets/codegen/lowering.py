"""TVM's own lowering, stopped for a look right after host and device code part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import dlight
from tvm.tirx.build import split_host_device_mods
from tvm_ffi.serialization import from_json_graph_str

from tapml_targets.codegen.booleans import with_logical_operators
from tapml_targets.codegen.reducers import register_infinite_extremes
from tapml_targets.codegen.remainders import without_multiples
from tapml_targets.codegen.rounded_casts import with_rounded_casts
from tapml_targets.codegen.small_integers import with_wrapped_integers
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.store_guards import keep_store_guards
from tapml_targets.codegen.tvm_errors import as_runtime_errors
from tapml_targets.codegen.unit_reductions import without_unit_reductions
from tapml_targets.dtype import dtype
from tapml_targets.errors import CompileError

ENTRY_NAME = "main"


class NoDeviceCodeError(CompileError):
    """A schedule bound nothing to threads."""


@dataclass(frozen=True)
class Lowered:
    """One operator after lowering.

    Attributes
    ----------
    host
        The host PrimFunc as ``tirx.SplitHostDevice`` left it: launches still in the open.
    device
        The device IRModule, ready for the code generator.
    target
        The code generation target.
    """

    host: Any
    device: Any
    target: Any


@tvm.ir.instrument.pass_instrument
class _HostCapture:
    """Keeps the module as it is after ``tirx.SplitHostDevice``."""

    def __init__(self) -> None:
        self.module: Any = None

    def run_after_pass(self, module: Any, info: Any) -> None:
        """TVM's hook."""
        if str(info.name).endswith("SplitHostDevice"):
            self.module = module


def load_function(source: OperatorSource) -> Any:
    """The operator's PrimFunc, as a module's entry named by the operator.

    Raises
    ------
    CompileError
        If the text is no PrimFunc.
    """
    try:
        function = _parsed(source.function)
    except Exception as error:
        raise CompileError(
            f"operator {source.name!r}: its function is not TVM JSON of this version: {error}"
        ) from error
    if not isinstance(function, tirx.PrimFunc):
        raise CompileError(
            f"operator {source.name!r}: expected a PrimFunc, got {type(function).__name__}"
        )
    function = with_rounded_casts(with_logical_operators(function))
    function = with_wrapped_integers(function)
    return function.with_attr("global_symbol", source.identifier)


def _parsed(text: str) -> Any:
    """A function as this version of TVM wrote it, or an earlier one, which takes rewriting it."""
    if text.endswith(f'"metadata":{{"tvm_version":"{tvm.__version__}"}}}}'):
        return from_json_graph_str(text)
    return tvm.ir.load_json(text)


def schedule(function: Any, target: Any, rules: Sequence[Any]) -> Any:
    """Give a PrimFunc its threads: the first of dlight's `rules` that applies.

    Returns
    -------
    IRModule
        With the scheduled function as its only one, named ``main``.

    Raises
    ------
    RuntimeError
        If a rule fails on the function.
    """
    register_infinite_extremes()
    module = tvm.IRModule({ENTRY_NAME: without_unit_reductions(function)})
    with target, as_runtime_errors("a rule of dlight fails on the function"):
        scheduled = dlight.ApplyDefaultSchedule(*rules)(module)
    function = without_multiples(scheduled[ENTRY_NAME])
    return tvm.IRModule({ENTRY_NAME: keep_store_guards(function)})


def lower(
    module: Any, target: Any, config: Mapping[str, Any] | None = None, exchange: Any = None
) -> Lowered:
    """Lower a scheduled module for `target`, which carries its host.

    Parameters
    ----------
    module
        An IRModule with one function.
    target
        TVM's target.
    config
        Settings of TVM's passes.
    exchange
        The target under which reductions over threads are lowered; None for `target`. TVM reduces
        by shuffles for some kinds alone.

    Raises
    ------
    NoDeviceCodeError
        If no device code came out: nothing was bound to threads.
    RuntimeError
        If a pass of TVM fails.
    """
    capture = _HostCapture()
    passes = tvm.transform.PassContext(instruments=[capture], config=dict(config or {}))
    with as_runtime_errors("TVM cannot lower the function"), passes:
        bound = target if exchange is None else exchange
        module = tirx.transform.BindTarget(bound)(module)
        pipeline, _, finalize_device = tirx.get_default_tir_pipeline(bound)
        lowered = pipeline(module)
        _, device_modules = split_host_device_mods(lowered)
        if len(device_modules) != 1 or capture.module is None:
            raise NoDeviceCodeError(
                f"expected device code for {target.kind.name}, lowering gave "
                f"{len(device_modules)} device modules"
            )
        ((device_target, device_module),) = device_modules.items()
        if exchange is not None:
            device_target, device_module = target, _bound_again(device_module, target)
        device = finalize_device()(device_module)
    return Lowered(capture.module[ENTRY_NAME], device, device_target)


def _bound_again(module: Any, target: Any) -> Any:
    """Device functions for another target: what remains to be lowered is lowered for that."""
    return tvm.IRModule(
        {name: function.with_attr("target", target) for name, function in module.functions.items()}
    )


def shared_memory_bytes(device: Any) -> dict[str, int]:
    """Shared memory that each device function reserves, by function name.

    What a launch asks for is not in it.
    """
    sizes: dict[str, int] = {}
    for variable, function in device.functions.items():
        total = 0

        def add(allocation: Any) -> None:
            nonlocal total
            buffer = allocation.buffer
            if buffer.scope().startswith("shared") and buffer.scope() != "shared.dyn":
                elements = math.prod(int(extent) for extent in buffer.shape)
                total += dtype(str(buffer.dtype)).nbytes(elements)

        tvm_ffi.structural_walk(function.body, (tirx.AllocBuffer, add))
        sizes[variable.name_hint] = total
    return sizes


def refusal(error: Exception) -> str:
    """What TVM said, in a few lines: its errors begin with a trace and end with the fact."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[-3:])[:1000]}"
