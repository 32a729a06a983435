"""What a format of quantized checkpoints is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, Final

import torch
from torch import Tensor

from tapml.models.packed.operation import WORD_BITS
from tapml.models.packed.weight import PackedWeight
from tapml_targets.errors import InputError

PER_WORD: Final = 8
"""Codes of four bits in a word of 32."""
CODE_BITS: Final = (4, 8)
"""Bits of a code that are read where words hold whole codes."""


@dataclass(frozen=True)
class Layer:
    """What a checkpoint has of one layer.

    Attributes
    ----------
    path
        Of the layer in the model, ``model.layers.0.mlp.up_proj``.
    tensors
        Its stored tensors by what their names end in.
    shape
        The matrix ``(N, K)`` that the model has there.
    config
        The checkpoint's ``quantization_config``.
    classes
        Names of the class that the layer has in the model, and of those that it is derived from.
    """

    path: str
    tensors: Mapping[str, Tensor]
    shape: tuple[int, int]
    config: Mapping[str, Any]
    classes: tuple[str, ...] = ("Linear",)

    def tensor(self, suffix: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of this shape.

        Raises
        ------
        InputError
            If it is missing or has another shape or dtype; the message has both.
        """
        found = self.tensors.get(suffix)
        got = None if found is None else tuple(found.shape)
        if found is None or got != shape:
            raise InputError(
                f"{self.path}.{suffix} has shape {got or 'none'}: expected {shape} for the "
                f"matrix {self.shape} of the model; config.json and the weights belong to "
                "different models, or the quantization_config is not theirs"
            )
        if dtype is not None and found.dtype != dtype:
            raise InputError(
                f"{self.path}.{suffix} has {found.dtype}: expected {dtype}; fetch the folder again"
            )
        return found

    def group_size(self, settings: Mapping[str, Any] | None = None) -> int:
        """The columns of a group, all of them by -1; the last group may have fewer.

        `settings` has the ``group_size``, else the checkpoint's ``quantization_config``.

        Raises
        ------
        InputError
            If it is no such number.
        """
        size = (self.config if settings is None else settings).get("group_size", 128)
        if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1):
            raise InputError(
                f"{self.path} has a group_size of {str(size)[:40]}: expected a number of columns, "
                "or -1 for all of them"
            )
        return self.shape[1] if size == -1 else min(size, self.shape[1])

    def groups(self, size: int) -> int:
        """How many groups of this size the columns have, the last one perhaps shorter."""
        return -(-self.shape[1] // size)

    def order(self, suffix: str, size: int) -> Tensor | None:
        """The columns sorted by their group, which a tensor says; None if they are.

        Raises
        ------
        InputError
            If a group has not as many columns as the others.
        """
        if suffix not in self.tensors:
            return None
        columns = self.shape[1]
        group_of = self.tensor(suffix, columns).long()
        if (group_of == -1).all():
            return None  # as it was made, and never set
        order = torch.argsort(group_of, stable=True)
        expected = torch.arange(columns) // size
        if not torch.equal(group_of[order], expected):
            raise InputError(
                f"{self.path}.{suffix} does not give every group {size} columns: expected what "
                "act-order writes; quantize the float weights (--quantize int4)"
            )
        return None if torch.equal(group_of, expected) else order

    def even(self, values: Tensor, size: int) -> Tensor:
        """Numbers ``[N, groups]``, repeated so that all groups have as many columns."""
        columns = self.shape[1]
        part = gcd(size, columns)
        return values if part == size else values[:, torch.arange(0, columns, part) // size]


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes
    ----------
    methods
        Values of ``quant_method`` that name it.
    codes
        What the name of a layer's codes ends in; a layer with it is packed.
    suffixes
        All endings of a packed layer's tensors, its bias apart.
    check
        Raises InputError if a ``quantization_config`` (and the file it is from) is not supported.
    read
        Reads a layer.
    in_place
        Whether a layer's tensors are used as they are stored.
    """

    methods: tuple[str, ...]
    codes: str
    suffixes: tuple[str, ...]
    check: Callable[[Mapping[str, Any], str], None]
    read: Callable[[Layer], PackedWeight]
    in_place: bool = False


def require(config: Mapping[str, Any], where: str, name: str, *allowed: Any) -> Any:
    """A value of a ``quantization_config``.

    Raises
    ------
    InputError
        If it is not one of those allowed.
    """
    value = config.get(name)
    if value not in allowed:
        raise InputError(
            f"{where} has {name} = {str(value)[:60]!r} in its quantization_config: expected "
            f"{' or '.join(map(str, allowed))}; take the model's float weights, and --quantize int4"
        )
    return value


def codes_of(
    words: Tensor, axis: int, bits: int = 4, order: tuple[int, ...] | None = None
) -> Tensor:
    """The codes of each 32-bit word, int32, along an axis; `order` is their position."""
    places = range(WORD_BITS // bits) if order is None else order
    shifts = torch.tensor([bits * place for place in places], dtype=torch.int32)
    moved = words.movedim(axis, -1).unsqueeze(-1) >> shifts & (1 << bits) - 1
    return moved.flatten(-2).movedim(-1, axis)
