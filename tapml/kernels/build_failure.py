"""What a driver says of a hand-written kernel that it does not build, in the developer's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from tapml.kernels.build_log import in_the_source
from tapml.kernels.written import WrittenKernel
from tapml_targets.errors import CompileError
from tapml_targets.library import CodeModule, Library

Build: TypeAlias = Callable[[Library], object]
"""Builds a Library on the device and gives it up again; raises CompileError where it cannot."""


def compiler_text(kernel: WrittenKernel, log: str, build: Build) -> str:
    """The driver's words with the developer's file, line and text in them.

    Parameters
    ----------
    kernel
        What was to be built.
    log
        What the driver said.
    build
        Asked of each source by itself, where there are several, to tell which one is meant.

    Raises
    ------
    DeviceLostError
        If the device is lost meanwhile.
    """
    module, source = kernel.library.modules[0], Path(kernel.source)
    if len(kernel.library.modules) > 1:
        module, source = _guilty(kernel, build) or (module, source)
    return in_the_source(log, source, module.code.decode(errors="replace"))


def _guilty(kernel: WrittenKernel, build: Build) -> tuple[CodeModule, Path] | None:
    """Which of several sources does not build by itself."""
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
