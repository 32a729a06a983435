"""Maps a driver's build log to the developer's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from tapml.failures.build_log import in_the_source
from tapml.kernels.written import WrittenKernel
from tapml_targets.errors import CompileError
from tapml_targets.library import CodeModule, Library

Build: TypeAlias = Callable[[Library], object]
"""Builds a Library on the device and unloads it; raises CompileError on failure."""


def compiler_text(kernel: WrittenKernel, log: str, build: Build) -> str:
    """The driver's log with the developer's file, line and text.

    Parameters
    ----------
    kernel
        The kernel that failed to build.
    log
        The driver's log.
    build
        Builds each source separately, if there are several, to find the failing one.

    Raises
    ------
    DeviceLostError
        If the device is lost.
    """
    module, source = kernel.library.modules[0], Path(kernel.source)
    if len(kernel.library.modules) > 1:
        module, source = _guilty(kernel, build) or (module, source)
    return in_the_source(log, source, module.code.decode(errors="replace"), module.dialect)


def _guilty(kernel: WrittenKernel, build: Build) -> tuple[CodeModule, Path] | None:
    """The source, of several, that does not build by itself."""
    for index, module in enumerate(kernel.library.modules):
        kernels = {
            name: replace(each, module=0)
            for name, each in kernel.library.kernels.items()
            if each.module == index
        }
        try:
            build(Library(kernel.library.target, (module,), kernels, {}))
        except CompileError:
            for path in kernel.files[1:]:
                if path.read_bytes() == module.code:
                    return module, path
    return None
