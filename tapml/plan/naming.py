"""Readable, distinct operator names."""

from __future__ import annotations

import re
from typing import Final

from tapml.own_operators import own_operators

# TVM's name of a function, and the field's.
_WORDS: Final = (("NT_matmul", "matmul_transposed"), ("tir_", ""), ("strided_slice", "slice"))
# Sequences of operators that have a name in every transformer.
_IDIOMS: Final = (
    ("multiply_mean_add_rsqrt_multiply_multiply", "rms_norm"),
    ("mean_add_rsqrt_multiply_multiply", "rms_norm"),
    ("sigmoid_multiply_multiply", "silu_multiply"),
    ("multiply_slice_slice_negative_concatenate_multiply_add", "rotary"),
)
# Digits that belong to the name; all other trailing digits are TVM's numbering.
_NUMBERED: Final = ("log2", "log10", "log1p", "expm1", "relu6", "atan2")
_LONGEST: Final = 60


def readable(name: str) -> str:
    """A TVM function name without numbers and jargon.

    >>> readable("fused_tir_sigmoid_multiply7_multiply7")
    'fused_silu_multiply'
    """
    for word, replacement in _WORDS:
        name = name.replace(word, replacement)
    name = "_".join(_without_number(part) for part in name.split("_") if part)
    for idiom, replacement in _IDIOMS:
        name = name.replace(idiom, replacement)
    if len(name) > _LONGEST:
        parts = name.split("_")
        kept: list[str] = []
        while parts and len("_".join((*kept, parts[0], "and", parts[-1]))) <= _LONGEST:
            kept.append(parts.pop(0))
        name = "_".join((*kept, "and", "more"))
    return name


def _without_number(part: str) -> str:
    for numbered in (*_NUMBERED, *own_operators()):
        if part.startswith(numbered):
            return numbered
    return re.sub(r"(?<=\D)\d+$", "", part)


class UniqueNames:
    """Issues each name once and numbers later requests for the same name."""

    def __init__(self, separator: str) -> None:
        self._separator = separator
        self._taken: set[str] = set()

    def take(self, name: str, first: int = 2) -> str:
        """`name`, or `name` with the first unused number starting at `first`.

        A name that ends in the separator always gets a number.
        """
        free = name
        number = first
        while free in self._taken or free.endswith(self._separator):
            free = f"{name.removesuffix(self._separator)}{self._separator}{number}"
            number += 1
        self._taken.add(free)
        return free
