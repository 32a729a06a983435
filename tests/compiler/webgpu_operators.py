"""Operators compiled to WGSL in the form that the platform compiles: the processors'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tapml.plan.graph_plan import Operator
from tapml_targets.library import Library
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tapml_targets.webgpu.codegen import generate
from tests.compiler.operators import from_relax, source

WEBGPU = Target("webgpu", limits=Limits(max_binding_bytes=128 << 20))


def compiled(of: Operator, target: Target = WEBGPU) -> Library:
    """The Library of an operator."""
    return generate(source(of), target)


def text(library: Library) -> str:
    """The WGSL of a Library's only kernel."""
    (module,) = library.modules
    return module.code.decode()


def scan(
    name: str,
    shape: tuple[Any, ...],
    build: Callable[[Any], Any],
    *,
    dtype: str = "float32",
    outputs: int = 1,
) -> Operator:
    """A sort or a scan; a text in `shape` is a dynamic extent."""
    return replace(from_relax(name, shape, build, dtype=dtype, outputs=outputs), name=name)
