"""Small kernels that every platform writes in its own language, to show that its drivers conform.

A kernel's body is C and WGSL at once: literals end in ``f`` or ``u``, ``VAR`` declares a variable
of the element type, and ``ELEMENT(x)`` converts to it. A platform's ``conformance.py`` makes
modules of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, cast

from tapml_targets.driver import (
    Buffer,
    BufferUse,
    Driver,
    KernelArgument,
    LoadedKernel,
    ScalarUse,
    TensorUse,
)
from tapml_targets.errors import InputError
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.platforms import optional_part

THREADS: Final = 64
"""Threads of a block."""
BLOCK: Final = (THREADS, 1, 1)


@dataclass(frozen=True)
class KernelText:
    """What element `i` of `n` does. Arguments: `o`, then `reads`, then `n` and `scalars`."""

    name: str
    body: str
    reads: tuple[str, ...] = ("a",)
    scalars: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float32"

    @property
    def all_scalars(self) -> dict[str, str]:
        """The dtype of each scalar argument."""
        return {"n": "int32", **self.scalars}


class KernelTable(Protocol):
    """A platform's kernels: its ``conformance.py``."""

    POINTERS: bool
    """Kernels take windows of memory and a grid; else whole tensors, and they run once."""
    BROKEN: str
    """What the driver says of a module in which `undeclared_name` is used, as a pattern."""

    def modules(self, kernels: Sequence[KernelText]) -> tuple[CodeModule, ...]:
        """One module with all of the kernels, or one for each."""

    def broken(self, module: CodeModule) -> CodeModule:
        """The module with a use of `undeclared_name`, or damaged where it is no text."""


def kernel_table(platform: str) -> KernelTable:
    """The table of a platform.

    Raises
    ------
    InputError
        If there is no such platform, or it has none; the file to write is named.
    SetupError
        If it belongs to another distribution and cannot be imported.
    """
    module = optional_part(platform, "conformance")
    if module is None:
        raise InputError(
            f"the platform {platform!r} has no kernels for the conformance suite: write "
            "conformance.py in its folder, which fulfils "
            "tapml_targets.conformance_kernels.KernelTable"
        )
    return cast("KernelTable", module)


ADD: Final = KernelText("add", "o[i] = a[i] + amount;", scalars={"amount": "float32"})
SCALE: Final = KernelText("scale", "o[i] = 2.0f * a[i];")
OVERRUN: Final = KernelText(
    "overrun", "o[i] = a[i]; if (i == n - 1) { o[place] = 13.0f; }", scalars={"place": "int32"}
)
PEEK: Final = KernelText("peek", "o[i] = a[i];")
# As many steps as every device runs without ending the loop, and each needs the one before.
SLOW: Final = KernelText(
    "slow",
    "VAR state = ELEMENT(i);"
    " for (VAR s = 0u; s < 60000u; s++) { state = state * 1664525u + 1013904223u; }"
    " o[i] = state;",
    reads=(),
    dtype="uint32",
)
BITS: Final = KernelText("bits", "o[i] = a[i];", dtype="uint32")


def misspelt(module: CodeModule) -> CodeModule:
    """The module with a use of `undeclared_name`, in a language that assigns with ``=``."""
    return replace(module, code=module.code.replace(b"o[i] = ", b"o[i] = undeclared_name + "))


def built(platform: str, *kernels: KernelText) -> tuple[tuple[CodeModule, ...], dict[str, Kernel]]:
    """Modules that hold `kernels`, and those as a Library lists them."""
    table = kernel_table(platform)
    modules = table.modules(kernels)
    threads = THREADS if table.POINTERS else 0
    return modules, {
        each.name: Kernel(each.name, each.name, min(index, len(modules) - 1), threads)
        for index, each in enumerate(kernels)
    }


def load(driver: Driver, kernel: KernelText) -> LoadedKernel:
    """Build one kernel on a device."""
    (module,), kernels = built(driver.description.platform, kernel)
    return driver.load(module, list(kernels.values()))[kernel.name]


def arguments(
    driver: Driver,
    kernel: KernelText,
    windows: Sequence[tuple[Buffer, int]],
    count: int,
    **scalars: int,
) -> tuple[tuple[KernelArgument, ...], tuple[int, int, int], tuple[int, int, int]]:
    """Arguments, grid and block of a kernel on `count` elements of 4 bytes from byte offsets."""
    given = tuple(
        ScalarUse(({"n": count} | scalars)[name], dtype)
        for name, dtype in kernel.all_scalars.items()
    )
    if not kernel_table(driver.description.platform).POINTERS:
        tensors = (TensorUse(buffer, at, (count,), kernel.dtype) for buffer, at in windows)
        return (*tensors, *given), (1, 1, 1), (1, 1, 1)
    uses = (BufferUse(buffer, at, 4 * count) for buffer, at in windows)
    return (*uses, *given), (-(-count // THREADS), 1, 1), BLOCK
