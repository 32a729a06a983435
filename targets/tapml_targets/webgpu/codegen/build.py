"""PrimFunc to WGSL: dlight's schedules, TVM's lowering, TVM's text, made right for WebGPU."""

from __future__ import annotations

from typing import Any, Final

import tvm
import tvm_ffi
from msgspec import structs
from tvm import tirx

from tapml_targets.codegen import lowering
from tapml_targets.codegen.constants import with_exact_constants
from tapml_targets.codegen.lanes import within_subgroups
from tapml_targets.codegen.mathematics import spell_out
from tapml_targets.codegen.narrow_types import check_elements, narrow_types
from tapml_targets.codegen.shaders import Shader, ShaderLanguage, generate_shaders
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.symbol_bounds import LaunchRange
from tapml_targets.codegen.tvm_errors import as_runtime_errors
from tapml_targets.codegen.wide_integers import PAIR, with_narrow_integers
from tapml_targets.codegen.wide_texts import WGSL
from tapml_targets.errors import CompileError
from tapml_targets.library import Launch, Library, ScalarArgument
from tapml_targets.target import Target
from tapml_targets.webgpu.codegen.mathematics import TEXTS
from tapml_targets.webgpu.codegen.storage import store_in_words
from tapml_targets.webgpu.codegen.text import (
    check_scalars,
    features_of,
    split_kernels,
    without_short_circuits,
)

DIALECT: Final = "wgsl"

_TVM_WIDTH: Final = 32
_NATIVE: Final = frozenset({"float16", "float32", "int32", "uint32", PAIR})
_NARROWED: Final = {"int64": "int32", "int32": "int32", "uint32": "uint32", "float32": "float32"}


def generate(source: OperatorSource, target: Target) -> Library:
    """Compile one operator; :func:`~tapml_targets.codegen.shaders.generate_shaders` says how.

    Raises
    ------
    CompileError
        Also if its elements are of a type that WGSL cannot compute.
    """
    return generate_shaders(source, target, _LANGUAGE)


def _written(
    launch: Launch, function: Any, ranges: LaunchRange, lowered: lowering.Lowered
) -> Shader:
    name = launch.kernel
    check_elements(function, _NATIVE, "WGSL")
    function, moves, modes, wide = with_narrow_integers(function, ranges, WGSL)
    function, spelt = spell_out(function, TEXTS)
    function, elements = narrow_types(function, _NATIVE, "WGSL")
    function = tvm_ffi.structural_map(function, [(tirx.NE, _unequal)])
    device = tvm.IRModule({name: function})
    build = tvm.get_global_func("target.build.webgpu")
    with as_runtime_errors("TVM cannot write the kernel"):
        printed = str(build(device, lowered.target).inspect_source("wgsl"))
    text = split_kernels(with_exact_constants(printed, device))[name]
    text = without_short_circuits(text)
    text = within_subgroups(text, "subgroupShuffle", f"{_TVM_WIDTH - 1}u")
    text = store_in_words(text, elements, modes, moves)
    text = "\n".join(each for each in (wide, spelt, text) if each)
    check_scalars(name, text, len(ranges.scalars))
    return Shader(name, text, features_of(text), _narrowed)


def _unequal(node: Any) -> Any:
    """NaN differs from every number: wgpu's compiler makes an ordered comparison of `!=`."""
    return tirx.Not(tirx.EQ(node.a, node.b)) if str(node.a.ty).startswith("float") else node


def _narrowed(scalar: ScalarArgument) -> ScalarArgument:
    if scalar.dtype not in _NARROWED:
        raise CompileError(f"a kernel takes a number of type {scalar.dtype}, WGSL has none")
    return structs.replace(scalar, dtype=_NARROWED[scalar.dtype])


def _exchange(width: int) -> tuple[str, dict[str, object]] | None:
    # With it TVM takes subgroups for 32 wide; without it no thread passes a value on.
    return ("webgpu", {"supports_subgroups": True}) if width == _TVM_WIDTH else None


_LANGUAGE: Final = ShaderLanguage(
    "webgpu", DIALECT, "webgpu", ["max_shared_memory_per_block"], _written, exchange=_exchange
)
