"""Runs the kernels by ctypes, in the memory of the platform that runs host functions."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from tapml_abacus.language import LANGUAGE
from tapml_targets.cpu import driver as host
from tapml_targets.cpu.loader import ALLOW_VARIABLE, shared_libraries_allowed
from tapml_targets.driver import (
    BoundLaunch,
    BufferUse,
    DeviceDescription,
    KernelArgument,
    ScalarUse,
)
from tapml_targets.errors import CompileError, InputError, NoSuchDeviceError, SetupError
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.limits import Limits
from tapml_targets.module_check import check_module

REMEDY: Final = "install a C compiler that is called cc, such as Debian's package gcc"
_PRELUDE: Final = """\
#include <math.h>
#include <stdbool.h>
typedef unsigned char uchar; typedef unsigned short ushort;
typedef unsigned int uint; typedef unsigned long ulong;
__attribute__((visibility("default"))) long tapml_threads;
#define work __attribute__((visibility("default"))) void
#define cells
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define EACH(i) for (long i = 0; i < tapml_threads; ++i)
"""
_NUMBERS: Final[Mapping[str, Any]] = {
    "int32": ctypes.c_int32, "uint32": ctypes.c_uint32, "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
}  # fmt: skip


def list_devices() -> list[DeviceDescription]:
    """This machine's processor, if it has a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise SetupError(f"the abacus platform needs a C compiler: {REMEDY}")
    processor = host.list_devices()[0]
    memory = processor.limits.memory_bytes
    return [
        replace(
            processor,
            platform="abacus",
            vendor_platform="Beads and rods",
            driver_version="1",
            limits=Limits(
                max_threads_per_block=1024,
                max_block=(1024, 1024, 1024),
                max_buffer_bytes=memory,
                memory_bytes=memory,
            ),
        )
    ]


def open_device(description: DeviceDescription) -> AbacusDriver:
    """Open the processor that `description` names."""
    found = list_devices()[0]
    if (description.name, description.driver_version) != (found.name, found.driver_version):
        raise NoSuchDeviceError(f"the abacus {description.name!r} is not here, but {found.name!r}")
    return AbacusDriver(found, shared_libraries_allowed())


@dataclass(frozen=True)
class LoadedWork:
    """A kernel, the number of its parameters, and where it finds the number of threads."""

    name: str
    function: Any
    parameters: int
    threads: Any


class AbacusDriver(host.CPUDriver):
    """The processor, with kernels in C."""

    dialects: Mapping[str, ModuleKind] = {LANGUAGE.dialect: LANGUAGE.kind}

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, Any]:
        """Compile a module."""
        check_module(module, self.dialects, "abacus")
        unknown = [option for option in module.options if option not in LANGUAGE.options]
        if unknown:
            raise CompileError(f"abacus has no build option {unknown[0]!r}")
        if not self._allowed:
            raise SetupError(f"C runs with all rights of this process: set {ALLOW_VARIABLE}=1")
        library = _built(module.code, bool(module.options))
        threads = ctypes.c_long.in_dll(library, "tapml_threads")
        found = {}
        for kernel in kernels:
            head = re.search(rb"\bwork " + kernel.symbol.encode() + rb"\s*\(([^)]*)\)", module.code)
            function = getattr(library, kernel.symbol, None)
            if head is None or function is None:
                raise CompileError(f"the module built, but has no kernel {kernel.symbol!r}")
            function.restype = None
            count = head[1].count(b",") + 1
            found[kernel.name] = LoadedWork(kernel.name, function, count, threads)
        return found

    def bind(self, launches: Sequence[BoundLaunch]) -> Any:
        """Convert arguments for ctypes."""
        bound = []
        for launch in launches:
            kernel, arguments = launch.kernel, launch.arguments
            if len(arguments) != kernel.parameters:
                raise InputError(
                    f"kernel {kernel.name!r} takes {kernel.parameters} arguments, "
                    f"got {len(arguments)}"
                )
            x, y, z = launch.threads
            bound.append((kernel, tuple(map(_argument, arguments)), x * y * z))
        return tuple(bound)

    def launch_all(self, sequence: Any) -> None:
        """Run every launch, which is done when this returns."""
        for kernel, arguments, threads in sequence:
            kernel.threads.value = threads
            started = time.perf_counter_ns()
            kernel.function(*arguments)
            if self._elapsed is not None:
                self._elapsed.append(time.perf_counter_ns() - started)


def _argument(argument: KernelArgument) -> Any:
    if isinstance(argument, BufferUse):
        return ctypes.c_void_p(argument.buffer.address + argument.byte_offset)
    if isinstance(argument, ScalarUse):
        return _NUMBERS[argument.dtype](argument.value)
    raise InputError("abacus kernels take memory and numbers, not tensors")


@cache
def _built(code: bytes, slow: bool) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="tapml-abacus-") as folder:
        source, made = Path(folder) / "kernels.c", Path(folder) / "kernels.so"
        source.write_bytes(_PRELUDE.encode() + b'#line 1 "kernels.c"\n' + code)
        ended = subprocess.run(
            ["cc", "-O0" if slow else "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w",
             "-fvisibility=hidden", "-Werror=implicit-function-declaration", str(source), "-lm",
             "-o", str(made)],
            capture_output=True,
            check=False,
        )  # fmt: skip
        if ended.returncode or not code:
            log = ended.stderr.decode(errors="replace").replace(folder, "")
            raise CompileError(f"cc does not compile this module:\n{log}")
        return ctypes.CDLL(str(made))
