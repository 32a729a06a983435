"""``tapml::unpack_weight`` written out in ATen operations, as torch forms of operators have it.

A suite may come from anywhere, so that the float64 oracle runs ATen operations alone. These are not
those of the operation itself: they take the numbers apart by other means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tapml.models.packed.operation import BRAIN, NAME, WORD_BITS
from tapml.plan.torch_subgraph import Argument, DataType, Extent, Reference, TorchNode

OPERATION: Final = NAME.replace("::", ".") + ".default"
# Bits of fraction and of exponent, and the exponent of a fraction's last bit, of exponent 0.
_FLOATS: Final = {False: (10, 5, -25), True: (7, 8, -134)}


@dataclass
class _Writer:
    """Appends operations, each on the result of others."""

    names: Iterator[str]
    nodes: list[TorchNode] = field(default_factory=list)

    def __call__(self, operation: str, *arguments: Argument, **keywords: Argument) -> Reference:
        name = next(self.names)
        made = TorchNode(name, f"aten.{operation}", arguments, tuple(keywords.items()))
        self.nodes.append(made)
        return Reference(name)


def unpacked_form(
    tensors: Sequence[Reference | None], bits: int, zero: int, groups: int, names: Iterator[str]
) -> list[TorchNode]:
    """The operations, the last of which gives the weights.

    Parameters
    ----------
    tensors
        Codes, scales, zeros and minimums.
    bits, zero
        As the operation takes them.
    groups
        Groups of a row.
    names
        Of the new nodes.
    """
    write = _Writer(names)
    codes, scales, zeros, minimums = tensors
    assert codes is not None  # noqa: S101 - the operation's schema
    shifts = write(
        "arange.start_step", Extent(0), Extent(WORD_BITS), Extent(bits), dtype=DataType("int32")
    )
    shifted = write(
        "bitwise_right_shift.Tensor", write("unsqueeze.default", codes, Extent(-1)), shifts
    )
    parts = write("bitwise_and.Scalar", shifted, Extent((1 << bits) - 1))
    plain = write("flatten.using_ints", parts, Extent(-2), Extent(-1))
    if scales is None:
        _float(write, plain, *_FLOATS[zero == BRAIN])
        return write.nodes
    value = write(
        "sub.Scalar", write("_to_copy.default", plain, dtype=DataType("float32")), float(zero)
    )
    value = write("unflatten.int", value, Extent(-1), (Extent(groups), Extent(-1)))
    for operation, tensor in (("sub", zeros), ("mul", scales), ("add", minimums)):
        if tensor is not None:
            spread = write("unsqueeze.default", tensor, Extent(-1))
            value = write(f"{operation}.Tensor", value, spread)
    write("flatten.using_ints", value, Extent(-2), Extent(-1))
    return write.nodes


def _float(write: _Writer, codes: Reference, fraction: int, exponent: int, last: int) -> None:
    """Fraction times a power of two, with its sign."""

    def cut(position: int, width: int) -> Reference:
        shifted = write("floor_divide.Scalar", codes, Extent(1 << position)) if position else codes
        bits = write("bitwise_and.Scalar", shifted, Extent((1 << width) - 1))
        return write("_to_copy.default", bits, dtype=DataType("float32"))

    power = cut(fraction, exponent)
    leading = write("mul.Scalar", write("clamp_max.default", power, 1.0), float(1 << fraction))
    number = write("add.Tensor", cut(0, fraction), leading)
    power = write("add.Scalar", write("clamp_min.default", power, 1.0), float(last))
    number = write("mul.Tensor", number, write("pow.Scalar", 2.0, power))
    sign = write("mul.Scalar", cut(fraction + exponent, 1), -2.0)
    write("mul.Tensor", number, write("add.Scalar", sign, 1.0))
