"""A kernel's arguments according to its source, to compare a manifest's with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ArgumentKind: TypeAlias = Literal["buffer", "scalar", "local", "other"]


@dataclass(frozen=True)
class SourceArgument:
    """One argument of a kernel in its source.

    Attributes
    ----------
    name
        Its name in the source.
    kind
        A pointer to device memory, a number, a pointer to shared (local) memory, or something
        unsupported, such as an image.
    dtype
        The element's or the number's dtype; empty if the type is not a plain one.
    constant
        Whether it is declared constant.
    text
        Its declaration in the source.
    """

    name: str
    kind: ArgumentKind
    dtype: str
    constant: bool
    text: str


@dataclass(frozen=True)
class Signature:
    """A kernel's arguments in order, and its line in the source, from 1."""

    entry: str
    arguments: tuple[SourceArgument, ...]
    line: int
