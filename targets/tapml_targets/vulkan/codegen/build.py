"""PrimFunc to GLSL: dlight's schedules, TVM's lowering, our own printer."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from msgspec import structs

from tapml_targets.codegen import lowering
from tapml_targets.codegen.mathematics import spell_out
from tapml_targets.codegen.narrow_types import narrow_types
from tapml_targets.codegen.shaders import Shader, ShaderLanguage, buffers_first, generate_shaders
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.symbol_bounds import LaunchRange
from tapml_targets.codegen.wide_integers import PAIR, with_narrow_integers
from tapml_targets.codegen.wide_texts import GLSL
from tapml_targets.errors import CompileError
from tapml_targets.library import Launch, Library, ScalarArgument
from tapml_targets.target import Target
from tapml_targets.vulkan.codegen import printer
from tapml_targets.vulkan.codegen.mathematics import TEXTS

DIALECT: Final = "glsl"

_NATIVE: Final = frozenset({"float16", "float32", "float64", "int32", "uint32", PAIR})
_WIDE: Final = _NATIVE | {"int64", "uint64"}
# Push constants that every device takes.
_PUSHED_BYTES: Final = 128
_SIZES: Final = {"int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8}


def generate(source: OperatorSource, target: Target) -> Library:
    """Compile one operator; :func:`~tapml_targets.codegen.shaders.generate_shaders` says how.

    64-bit integers become 32-bit ones where that is proven to change nothing. Where it is not, a
    device with the feature ``int64`` computes in 64 bits, another one in pairs of words. Threads
    pass on the parts of a sum by shuffles where the device has subgroups of one width that a launch
    can require, and TVM reduces so: over at most that many threads, or over a block of at most the
    square of that.

    Raises
    ------
    CompileError
        Also if a part of it has no counterpart in GLSL.
    """
    # dlight's own product with a vector for Vulkan gives a block eight rows, where TVM drops the
    # condition of the store behind the reduction (:mod:`tapml_targets.codegen.store_guards`).
    # Scheduled for WebGPU a block has one row; `schedule_kind=vulkan` takes the other.
    language = ShaderLanguage(
        "vulkan",
        DIALECT,
        "webgpu",
        ["max_threads_per_block", "max_shared_memory_per_block"],
        partial(_written, target.limits.features),
        # GLSL's vectors have at most four parts, and compilers join loads by themselves.
        {"tirx.disable_vectorize": True},
        # TVM has no shuffles for Vulkan. Those of Metal are calls of any width, without masks, and
        # stay calls where the rest is lowered for Vulkan.
        lambda width: ("metal", {"thread_warp_size": width}),
    )
    return generate_shaders(source, target, language)


def _written(
    features: frozenset[str],
    launch: Launch,
    function: Any,
    ranges: LaunchRange,
    lowered: lowering.Lowered,
) -> Shader:
    del lowered
    try:
        own = None if "int64" in features else GLSL
        function, moves, modes, text = with_narrow_integers(function, ranges, own)
    except CompileError:
        if "int64" not in features:
            raise
        return _shader(launch, function, features, "", wide=True)
    return _shader(launch, function, features, text, wide=False, modes=modes, moves=moves)


def _shader(
    launch: Launch, function: Any, features: frozenset[str], text: str, *, wide: bool, **narrow: Any
) -> Shader:
    function, spelt = spell_out(function, TEXTS)
    spelt = "\n".join(each for each in (text, spelt) if each)
    function, elements = narrow_types(function, _WIDE if wide else _NATIVE, "GLSL")
    number_type = partial(_scalar, wide=wide)
    scalars = [
        each.dtype
        for each in buffers_first(launch, number_type).arguments
        if isinstance(each, ScalarArgument)
    ]
    _check_pushed(launch.kernel, scalars)
    kernel = printer.Kernel(
        launch.kernel, function, scalars, elements, functions=spelt, features=features, wide=wide,
        **narrow,
    )  # fmt: skip
    printed = printer.print_kernel(kernel)
    return Shader(printed.symbol, printed.text, printed.features, number_type)


def _check_pushed(kernel: str, scalars: list[str]) -> None:
    needed = sum(_SIZES[each] for each in scalars) + 8
    if needed > _PUSHED_BYTES:
        raise CompileError(
            f"kernel {kernel!r} takes {len(scalars)} numbers: {needed} bytes of push constants, "
            f"and every Vulkan device has {_PUSHED_BYTES}; keep the operator on the source"
        )


def _scalar(scalar: ScalarArgument, *, wide: bool) -> ScalarArgument:
    if scalar.dtype == "int64" and not wide:
        return structs.replace(scalar, dtype="int32")
    if scalar.dtype not in _SIZES:
        raise CompileError(f"a kernel takes a number of type {scalar.dtype}, GLSL has none")
    return scalar
