"""A packed weight: one inner layout for every quantization that tapml reads or makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import torch
from torch import Tensor

from tapml.models.packed.operation import WORD_BITS, unpack_weight, words_of
from tapml_targets.errors import InputError

BITS: Final = (4, 8, 16)


@dataclass(frozen=True)
class PackedWeight:
    """A matrix ``[N, K]`` as codes; :mod:`tapml.models.packed.operation` says what they mean.

    Attributes
    ----------
    codes
        Words, int32 ``[N, K * bits / 32]``.
    bits
        4, 8 or 16.
    zero
        The code of zero in all groups, or the format of codes of 16 bits.
    scales, zeros, minimums
        float32 ``[N, K / G]``, or None.
    order
        Where the codes are not in the order of the columns: the column of each code, int32 ``[K]``,
        or ``[P, K]`` for each of P equal parts of the rows.
    """

    codes: Tensor
    bits: int
    zero: int
    scales: Tensor | None = None
    zeros: Tensor | None = None
    minimums: Tensor | None = None
    order: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        rows, words = self.codes.shape
        return int(rows), int(words) * WORD_BITS // self.bits

    @property
    def group(self) -> int:
        """Codes of a group; 0 if there are none."""
        return 0 if self.scales is None else self.shape[1] // int(self.scales.shape[1])

    def unpacked(self) -> Tensor:
        """The matrix, float32 ``[N, K]``, with its columns in their own order."""
        parts = (self.codes, self.scales, self.zeros, self.minimums)
        stored: Tensor = unpack_weight(*parts, self.bits, self.zero)
        if self.order is None:
            return stored
        order = self.order.long().reshape(-1, stored.shape[1])
        order = order.repeat_interleave(len(stored) // len(order), 0)
        return torch.empty_like(stored).scatter_(1, order, stored)

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by attribute name."""
        found = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in found if isinstance(value, Tensor)}

    def rows(self, chosen: Tensor | slice) -> PackedWeight:
        """The weight with these rows in this order."""
        parts: dict[str, Any] = {
            name: tensor[chosen].contiguous()
            for name, tensor in self.tensors().items()
            if name != "order"
        }
        return replace(self, **parts)


def pack(
    codes: Tensor,
    bits: int,
    zero: int = 0,
    *,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    minimums: Tensor | None = None,
    order: Tensor | None = None,
    name: str = "the weight",
) -> PackedWeight:
    """Pack unsigned codes, integers ``[N, K]``.

    Raises
    ------
    InputError
        If a row does not fill whole words, or the groups do not divide it.
    """
    rows, columns = (int(each) for each in codes.shape)
    per_word = WORD_BITS // bits
    if columns % per_word:
        raise InputError(
            f"{name} has {columns} columns: expected a multiple of {per_word} for {bits} bits; "
            "leave it as it is, or take more bits"
        )
    parts: dict[str, Any] = {"scales": scales, "zeros": zeros, "minimums": minimums}
    for part, given in parts.items():
        if given is None:
            continue
        groups = int(given.shape[1]) if given.dim() == 2 else 0
        if given.shape[0] != rows or groups < 1 or columns % groups:
            raise InputError(
                f"{name} has {part} {tuple(given.shape)} for {(rows, columns)} codes: expected "
                f"{rows} rows of a number that divides {columns}"
            )
        parts[part] = given.to(torch.float32).contiguous()
    ordered = None if order is None else order.to(torch.int32).contiguous()
    return PackedWeight(words_of(codes, bits).contiguous(), bits, zero, **parts, order=ordered)


def from_tensors(tensors: Mapping[str, Tensor], bits: int, zero: int) -> PackedWeight:
    """A weight from what :meth:`PackedWeight.tensors` gave."""
    return PackedWeight(
        tensors["codes"], bits, zero, **{n: t for n, t in tensors.items() if n != "codes"}
    )
