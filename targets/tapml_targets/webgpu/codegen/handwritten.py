"""Kernels written by hand: their texts, filled in, and the Libraries made of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from string import Template
from typing import Final

from tapml_targets.codegen.expression import fold
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.expression import Expression
from tapml_targets.installed import compiler_versions
from tapml_targets.library import (
    Argument,
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    ScalarArgument,
    Statement,
    Workspace,
)
from tapml_targets.limits import Limits
from tapml_targets.webgpu.codegen.text import features_of
from tapml_targets.webgpu.module_text import read_module

MOST_THREADS: Final = 256


def threads_for(limits: Limits) -> int:
    """Threads of a workgroup: as many as the kernels are good with and the device allows."""
    return min(MOST_THREADS, limits.max_threads_per_block or MOST_THREADS)


def kernel_text(kernel: str, threads: int, **parts: str) -> str:
    """The text in ``kernels/<kernel>.wgsl`` with its places filled."""
    text = files("tapml_targets.webgpu").joinpath("kernels", f"{kernel}.wgsl").read_text("utf-8")
    return Template(text).substitute(threads=f"{threads}u", **parts)


def launch(
    kernel: str,
    buffers: tuple[str, ...],
    scalars: tuple[Expression, ...],
    blocks: Expression,
    threads: int,
) -> Launch:
    """A launch of `blocks` workgroups in a row."""
    arguments: tuple[Argument, ...] = (
        *(BufferArgument(name) for name in buffers),
        *(ScalarArgument(value, "uint32") for value in scalars),
    )
    return Launch(kernel, arguments, grid=(blocks, 1, 1), block=(threads, 1, 1))


def blocks_of(elements: Expression, threads: int) -> Expression:
    """Workgroups that it takes for one thread per element."""
    return fold("floordiv", fold("add", elements, threads - 1), threads)


def handwritten_library(
    source: OperatorSource,
    texts: Mapping[str, str],
    statements: tuple[Statement, ...],
    workspaces: tuple[Workspace, ...] = (),
) -> Library:
    """The Library of one operator, whose kernels are called as in `texts`."""
    kernels = {}
    for index, (name, text) in enumerate(texts.items()):
        module = read_module(text.encode())
        x, y, z = module.block
        kernels[name] = Kernel(
            name=name,
            symbol=module.symbol,
            module=index,
            threads_per_block=x * y * z,
            shared_memory_bytes=module.workgroup_bytes,
            features=features_of(text),
        )
    program = OperatorProgram(
        source.name, source.parameters, statements, workspaces, source.symbols
    )
    return Library(
        target="webgpu",
        modules=tuple(CodeModule("wgsl", text.encode()) for text in texts.values()),
        kernels=kernels,
        operators={source.name: program},
        metadata={"compiler": compiler_versions()},
    )
