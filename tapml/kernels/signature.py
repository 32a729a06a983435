"""What a kernel takes by its source: enough to hold a manifest's arguments against it."""

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
        What the source calls it.
    kind
        A pointer to device memory, a number, a pointer to shared (local) memory, or something that
        no operator passes, such as an image.
    dtype
        The element's or the number's dtype; empty where the source's type is not a plain one.
    constant
        Whether the source promises not to write through it.
    text
        As it stands in the source.
    """

    name: str
    kind: ArgumentKind
    dtype: str
    constant: bool
    text: str


@dataclass(frozen=True)
class Signature:
    """A kernel's arguments in order, and the line of the source where it stands, from 1."""

    entry: str
    arguments: tuple[SourceArgument, ...]
    line: int
