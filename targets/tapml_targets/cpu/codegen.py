"""PrimFunc to a shared object: TVM's LLVM, then the machine's own linker.

The result runs with apache-tvm-ffi alone: it is single-threaded and takes its scratch memory from
the C library, so that TVM's runtime is not needed on the device.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import split_host_device_mods

from tapml_targets.codegen import lowering
from tapml_targets.codegen.host_function import calls_runtime, for_host
from tapml_targets.codegen.host_linker import link_shared_object
from tapml_targets.codegen.host_mathematics import call_c_library
from tapml_targets.codegen.host_program import bind_signature
from tapml_targets.codegen.host_schedule import (
    cpu_target,
    is_slow_to_reassociate,
    schedule_for_host,
)
from tapml_targets.codegen.options import check_options
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.tvm_errors import as_runtime_errors
from tapml_targets.errors import CompileError
from tapml_targets.installed import compiler_versions
from tapml_targets.library import (
    Argument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    ScalarArgument,
    TensorArgument,
)
from tapml_targets.target import Target

DIALECT: Final = "elf-shared-object"

_CACHE_LINE_BYTES: Final = 64
_OPTIONS: Final[Mapping[str, tuple[str, ...] | None]] = {
    "cache": ("use", "bypass"),
}


def generate(source: OperatorSource, target: Target) -> Library:
    """Compile one operator.

    Parameters
    ----------
    source
        The operator, unscheduled.
    target
        The code runs on any processor of this architecture. The option ``cache=bypass``
        changes only the cache key.

    Returns
    -------
    Library
        One module in the dialect ``elf-shared-object``, one kernel, one operator.

    Raises
    ------
    CompileError
        If TVM refuses the operator, it calls into TVM's runtime, there is no linker, or an option
        is unknown.
    """
    check_options(target, _OPTIONS)
    bind_signature(lowering.load_function(source), source)
    if calls_runtime(source.function):
        raise CompileError(
            f"operator {source.name!r} calls functions of TVM's runtime, which a CPU device does "
            "not have; keep it on the source"
        )
    edited = OperatorSource(source.name, for_host(source.function), source.parameters)
    function = call_c_library(lowering.load_function(edited))
    try:
        compiled = _object_code(schedule_for_host(function))
    except RuntimeError as error:
        raise CompileError(lowering.refusal(error)) from error
    code = link_shared_object(compiled)
    name = source.identifier
    arguments: tuple[Argument, ...] = (
        *(TensorArgument(parameter.name) for parameter in source.parameters),
        *(ScalarArgument(symbol, "int64") for symbol in source.symbols),
    )
    return Library(
        target="cpu",
        modules=(CodeModule(DIALECT, code, kind="machine", architecture=platform.machine()),),
        kernels={name: Kernel(name=name, symbol=name, module=0)},
        operators={
            source.name: OperatorProgram(
                name=source.name,
                parameters=source.parameters,
                statements=(Launch(name, arguments),),
                symbols=source.symbols,
            )
        },
        metadata={"compiler": compiler_versions()},
    )


def _object_code(function: Any) -> bytes:
    """The operator as a relocatable object."""
    target = cpu_target()
    if is_slow_to_reassociate(function, target):
        target = cpu_target(reassociates=False)
    module = tvm.IRModule({lowering.ENTRY_NAME: function})
    with as_runtime_errors("TVM cannot compile the function"):
        module = tirx.transform.BindTarget(target.with_host(target))(module)
        pipeline, finalize_host, _ = tirx.get_default_tir_pipeline(target)
        host, _ = split_host_device_mods(pipeline(module))
        host = finalize_host()(host)
        own = {variable: _with_own_scratch(f) for variable, f in host.functions.items()}
        host = tvm.IRModule(own, attrs=host.attrs)
        built = tvm.get_global_func("target.build.llvm")(host, target)
    with tempfile.TemporaryDirectory(prefix="tapml-") as folder:
        path = Path(folder) / "operator.o"
        built.write_to_file(str(path))
        return path.read_bytes()


def _with_own_scratch(function: Any) -> Any:
    """Take scratch memory from the C library instead of TVM's runtime."""

    def allocate(call: Any) -> Any:
        if str(getattr(call.op, "name", "")).endswith("TVMBackendAllocWorkspace"):
            size = call.args[2].astype("uint64")
            line = tirx.IntImm("uint64", _CACHE_LINE_BYTES)
            rounded = tirx.Div(size + line, line) * line
            return tirx.call_extern(call.ty, "aligned_alloc", line, rounded)
        return call

    def release(statement: Any) -> Any:
        freed: Any = getattr(statement.condition, "a", None)
        if str(getattr(getattr(freed, "op", None), "name", "")).endswith("TVMBackendFreeWorkspace"):
            return tirx.Evaluate(tirx.call_extern("int32", "free", freed.args[2]))
        return statement

    return tvm_ffi.structural_map(function, [(tirx.IfThenElse, release), (tvm.ir.Call, allocate)])
