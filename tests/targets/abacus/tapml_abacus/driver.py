"""Runs the kernels by ctypes, in the memory of the platform that runs host functions."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from tapml_abacus.language import LANGUAGE
from tapml_targets.check_messages import Message, Place
from tapml_targets.cpu import driver as host
from tapml_targets.cpu.loader import ALLOW_VARIABLE, shared_libraries_allowed
from tapml_targets.driver import BufferUse, DeviceDescription, KernelArgument, ScalarUse
from tapml_targets.errors import CompileError, InputError, NoSuchDeviceError, SetupError
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.limits import Limits
from tapml_targets.module_check import check_module
from tapml_targets.simulator.lines import place_at

REMEDY: Final = "install its C compiler: pip install ziglang"
LOG: Final = "TAPML_ABACUS_LOG"
"""The file to which a process that checks writes."""
_HEADER: Final = Path(__file__).with_name("abacus.h")
_COVERAGE: Final = " -Xclang -fsanitize-coverage-"
_CHECKED: Final = "-O0 -gline-tables-only -gdwarf-4" + _COVERAGE.join(
    ("", "type=3", "trace-loads", "trace-stores")
)
_FLAGS: Final = (
    "-shared -fPIC -nostdlib -w -fno-sanitize=undefined -fwrapv -ffp-contract=off "
    "-fvisibility=hidden -Werror=implicit-function-declaration -fno-color-diagnostics"
)
_SLACK_BYTES: Final = 1 << 16
_NUMBERS: Final[Mapping[str, Any]] = {
    "int32": ctypes.c_int32, "uint32": ctypes.c_uint32, "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
}  # fmt: skip


def zig() -> Path:
    """The compiler; raises SetupError if it is not installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(f"the abacus platform has no ziglang: {REMEDY}")
    return Path(spec.submodule_search_locations[0]) / "zig"


def list_devices() -> list[DeviceDescription]:
    """This machine's processor, if it has the compiler."""
    zig()
    found = host.list_devices()[0]
    memory, kind = found.limits.memory_bytes, "checker" if LOG in os.environ else found.device_type
    limits = Limits(1024, (1024, 1024, 1024), max_buffer_bytes=memory, memory_bytes=memory)
    named: Any = {"platform": "abacus", "vendor_platform": "Beads and rods", "driver_version": "1"}
    return [replace(found, **named, device_type=kind, limits=limits)]


def open_device(description: DeviceDescription) -> AbacusDriver:
    """Open the processor that `description` names."""
    found = list_devices()[0]
    if (description.name, description.driver_version) != (found.name, found.driver_version):
        raise NoSuchDeviceError(f"the abacus {description.name!r} is not here, but {found.name!r}")
    return AbacusDriver(found, shared_libraries_allowed())


@dataclass(frozen=True)
class LoadedWork:
    """A kernel, the number of its parameters, and its library."""

    name: str
    function: Any
    parameters: int
    library: ctypes.CDLL

    def state(self, name: str, count: int) -> Any:
        """Numbers of the header."""
        return (ctypes.c_long * count).in_dll(self.library, name)


class Window(ctypes.c_void_p):
    """Where a window of memory begins, and how long it is."""

    nbytes = 0


class AbacusDriver(host.CPUDriver):
    """The processor, with kernels in C."""

    dialects: Mapping[str, ModuleKind] = {LANGUAGE.dialect: LANGUAGE.kind}

    def _allocate(self, nbytes: int) -> Any:
        # What is checked may well write behind its window.
        return super()._allocate(nbytes + _SLACK_BYTES * (LOG in os.environ))

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, Any]:
        """Compile a module."""
        check_module(module, self.dialects, "abacus")
        if unknown := set(module.options) - {*LANGUAGE.options, "no-optimiser"}:
            raise CompileError(f"abacus has no build option {min(unknown)!r}")
        if not self._allowed:
            raise SetupError(f"C runs with all rights of this process: set {ALLOW_VARIABLE}=1")
        library = _built(module.code, "-O0" if module.options else "-O1")
        heads = dict(re.findall(rb"\bwork (\w+)\s*\(([^)]*)\)", module.code))
        found = {}
        for kernel in kernels:
            function, head = (
                getattr(library, kernel.symbol, None),
                heads.get(kernel.symbol.encode()),
            )
            if head is None or function is None:
                raise CompileError(f"the module built, but has no kernel {kernel.symbol!r}")
            function.restype = None
            found[kernel.name] = LoadedWork(kernel.name, function, head.count(b",") + 1, library)
        return found

    def bind(self, launches: Sequence[Any]) -> Any:
        """Convert arguments for ctypes."""
        bound = []
        for launch in launches:
            kernel, arguments = launch.kernel, launch.arguments
            if len(arguments) != kernel.parameters:
                takes = f"kernel {kernel.name!r} takes {kernel.parameters} arguments"
                raise InputError(f"{takes}, got {len(arguments)}")
            x, y, z = launch.threads
            bound.append((kernel, tuple(map(_argument, arguments)), x * y * z))
        return tuple(bound)

    def launch_all(self, sequence: Any) -> None:
        """Run every launch, which is done when this returns."""
        for kernel, arguments, threads in sequence:
            kernel.state("tapml_threads", 1)[0] = threads
            started = time.perf_counter_ns()
            if LOG in os.environ:
                _look(kernel, arguments)
            else:
                kernel.function(*arguments)
            if self._elapsed is not None:
                self._elapsed.append(time.perf_counter_ns() - started)


def _argument(argument: KernelArgument) -> Any:
    if isinstance(argument, BufferUse):
        window = Window(argument.buffer.address + argument.byte_offset)
        window.nbytes = argument.nbytes
        return window
    if isinstance(argument, ScalarUse):
        return _NUMBERS[argument.dtype](argument.value)
    raise InputError("abacus kernels take memory and numbers, not tensors")


def _look(kernel: LoadedWork, arguments: Sequence[Any]) -> None:
    """Run a kernel that is built to be checked, and log its first access outside its windows."""
    ends = [n for each in arguments if isinstance(each, Window) for n in (each.value, each.nbytes)]
    kernel.state("tapml_windows", 129)[: len(ends) + 1] = [len(ends) // 2, *ends]
    found = kernel.state("tapml_found", 4)
    found[:] = [0, 0, 0, 0]
    kernel.function(*arguments)
    written, nbytes, place, address = found
    if nbytes:
        line, column = place_at(kernel.library, place)
        access: Any = "write" if written else "read"
        kind: Any = f"out-of-bounds {access}"
        words = f"Invalid {access} of size {nbytes} at global"
        at = (Place(line, column, access),)
        message = Message(kind, words, kernel.name, at, "global", address, nbytes)
        with Path(os.environ[LOG]).open("a") as log:
            log.write(json.dumps(asdict(message)) + "\n")


@cache
def _built(code: bytes, flags: str) -> ctypes.CDLL:
    ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
    folder = Path(tempfile.mkdtemp(prefix="tapml-abacus-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, made = folder / "kernels.c", folder / "kernels.so"
    source.write_bytes(b'#include "abacus.h"\n#line 1 "kernels"\n' + code)
    given = f"{_FLAGS} {_CHECKED if LOG in os.environ else flags} -I {_HEADER.parent}".split()
    command = [str(zig()), "cc", *given, "-o", str(made), str(source)]
    ended = subprocess.run(command, capture_output=True, check=False)
    if ended.returncode or not code:
        log = ended.stderr.decode(errors="replace")
        raise CompileError(f"zig does not compile this module:\n{log}")
    return ctypes.CDLL(str(made))
