"""What AMD's processors make of a kernel, by clang's assembly: no GPU and no ROCm take part.

The compiler is the one of PyPI's ``ziglang``. It has no device library, so calls of ``tanhf`` and
its like stay calls; all else is compiled as for the device.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tapml_targets.errors import CompileError, SetupError
from tapml_targets.installed import install_hint
from tapml_targets.library import CodeModule
from tapml_targets.limits import Limits
from tapml_targets.rocm.language import BUILD_OPTIONS

ARCHITECTURES: Final = (
    "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1151", "gfx1201",
)  # fmt: skip
_HEADER: Final = Path(__file__).parent / "native" / "device.h"
_SECONDS: Final = 120
_FLAGS: Final = (
    "-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-std=c++17", "-S", "-w",
    "-fno-color-diagnostics",
)  # fmt: skip
_KERNEL: Final = re.compile(r"^  - \.a\w+:.*?(?=^  - \.a\w+:|^amdhsa\.target)", re.M | re.S)
_NAMES: Final = {
    "vector_registers": "vgpr_count",
    "scalar_registers": "sgpr_count",
    "spilled_vector_registers": "vgpr_spill_count",
    "spilled_scalar_registers": "sgpr_spill_count",
    "shared_memory_bytes": "group_segment_fixed_size",
    "private_memory_bytes": "private_segment_fixed_size",
    "wave_width": "wavefront_size",
    "most_threads": "max_flat_workgroup_size",
}


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel as the assembler's notes describe it.

    Attributes
    ----------
    name
        Its symbol.
    vector_registers, scalar_registers
        Registers of a thread, and of a wave.
    spilled_vector_registers, spilled_scalar_registers
        How many of them did not fit and lie in memory.
    shared_memory_bytes
        Of a block, declared by the text.
    private_memory_bytes
        Of a thread, in memory.
    wave_width
        Threads of a wave.
    most_threads
        Of a block.
    """

    name: str
    vector_registers: int
    scalar_registers: int
    spilled_vector_registers: int
    spilled_scalar_registers: int
    shared_memory_bytes: int
    private_memory_bytes: int
    wave_width: int
    most_threads: int

    def problems(self, limits: Limits) -> Iterator[str]:
        """What a device of `limits` cannot take, or takes badly."""
        least, most = limits.subgroup_widths
        if most and not least <= self.wave_width <= most:
            yield f"waves of {self.wave_width} threads; the device has {least} to {most}"
        for what, needed, bound in (
            ("bytes of shared memory", self.shared_memory_bytes, limits.max_shared_memory_bytes),
            ("threads of a block", self.most_threads, limits.max_threads_per_block),
        ):
            if needed > bound > 0:
                yield f"{needed} {what}; the device has {bound}"
        spilled = self.spilled_vector_registers + self.spilled_scalar_registers
        if spilled:
            yield f"{spilled} registers that do not fit and lie in memory"


def compile_for(module: CodeModule, architecture: str) -> tuple[CompiledKernel, ...]:
    """Compile a module for an architecture and read what it takes.

    Raises
    ------
    CompileError
        If clang refuses it, with its messages; the kernels' lines are those of the text.
    SetupError
        If ziglang is missing.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise SetupError(f"the compile check needs ziglang: {install_hint('simulator')}")
    options = [BUILD_OPTIONS[option] for option in module.options]
    ended = subprocess.run(
        [
            sys.executable, "-m", "ziglang", "clang", *_FLAGS, f"--offload-arch={architecture}",
            "-O2", *options, "-include", str(_HEADER), "-o", "-", "-",
        ],
        input=module.code,
        capture_output=True,
        check=False,
        timeout=_SECONDS,
    )  # fmt: skip
    if ended.returncode:
        log = ended.stderr.decode(errors="replace").replace("<stdin>", "kernels.hip")
        raise CompileError(f"clang does not compile this module for {architecture}:\n{log}")
    return tuple(map(_read, _KERNEL.findall(ended.stdout.decode())))


def _read(note: str) -> CompiledKernel:
    def value(key: str) -> str:
        found = re.search(rf"^\s+\.{key}:\s+(\S+)", note, re.M)
        if found is None:
            raise CompileError(f"clang's assembly says no .{key} of a kernel")
        return found[1]

    return CompiledKernel(
        # A kernel's own name follows those of its arguments.
        re.findall(r"^    \.name:\s+(\S+)", note, re.M)[-1],
        **{field: int(value(key)) for field, key in _NAMES.items()},
    )
