"""Translates ``tapml::unpack_weight`` to a kernel function.

The function reads one word for each weight and is fused into the product that reads the weights
(:mod:`tapml.importing.fuse_producers`), so that they are never in memory unpacked.
"""

from __future__ import annotations

from typing import Any, Final

from torch import fx
from tvm import te, tirx

from tapml.models.packed.operation import BRAIN, WORD_BITS

CONVERTER: Final = "unpack_weight.default"
UNPACKS: Final = "tapml.unpacks"
"""Attribute of a function that unpacks weights."""

_HALF_FRACTION: Final = 10
_HALF_SIGN: Final = 15
_HALF_BIAS: Final = 25


def convert(importer: Any, node: fx.Node) -> Any:
    """Emit a call of the function that unpacks, which has the attribute :data:`UNPACKS`."""
    codes, *parts, bits, zero = importer.retrieve_args(node)
    tensors = [each for each in parts if each is not None]
    given = [each is not None for each in parts]

    def unpacked(words: Any, *rest: Any) -> Any:
        tensor = iter(rest)
        scales, zeros, minimums = (next(tensor) if each else None for each in given)
        return _unpacked(words, scales, zeros, minimums, int(bits), int(zero))

    return importer.block_builder.emit_te(
        unpacked,
        codes,
        *tensors,
        primfunc_name_hint=f"unpack_{bits}_bits",
        primfunc_attrs={UNPACKS: int(bits)},
    )


def unpacks(function: Any) -> bool:
    """Whether a PrimFunc unpacks weights."""
    return UNPACKS in function.attrs


def _unpacked(words: Any, scales: Any, zeros: Any, minimums: Any, bits: int, zero: int) -> Any:
    per_word = WORD_BITS // bits
    *leading, row = words.shape
    columns = row * per_word
    group = None if scales is None else columns // scales.shape[-1]

    def weight(*at: Any) -> Any:
        *outer, column = at
        word = words[(*outer, tirx.floordiv(column, per_word))]
        shift = tirx.floormod(column, per_word) * bits
        code = (word >> shift.astype("int32")) & tirx.const((1 << bits) - 1, "int32")
        if scales is None:
            return _brain(code) if zero == BRAIN else _half(code)
        place = (*outer, tirx.floordiv(column, group))
        value = (code - zero if zero else code).astype("float32")
        if zeros is not None:
            value = value - zeros[place]
        value = value * scales[place]
        return value if minimums is None else value + minimums[place]

    return te.compute((*leading, columns), weight, name="unpacked")


def _half(code: Any) -> Any:
    """A float16 in float32, without a half type on the device: fraction * 2^exponent is exact."""
    exponent = (code >> _HALF_FRACTION) & 31
    fraction = code & 1023
    normal = tirx.Select(exponent > 0, fraction + 1024, fraction)
    power = tirx.const(1, "int32") << tirx.max(exponent, tirx.const(1, "int32"))
    signed = tirx.Select((code >> _HALF_SIGN) > 0, -normal, normal)
    scale = tirx.const(2.0**-_HALF_BIAS, "float32")
    return signed.astype("float32") * power.astype("float32") * scale


def _brain(code: Any) -> Any:
    """A bfloat16 in float32: the upper half of its bits."""
    return tirx.reinterpret("float32", code << 16)
