"""What a checker says of a kernel: one message per fault, the same for every platform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

Kind: TypeAlias = Literal[
    "out-of-bounds read",
    "out-of-bounds write",
    "out-of-bounds access",
    "array index out of range",
    "data race",
    "barrier divergence",
    "uninitialised value",
    "unaligned access",
    "simulator error",
    "other",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Access: TypeAlias = Literal["read", "write", "barrier", ""]


@dataclass(frozen=True)
class Place:
    """The location of a work-item.

    Attributes
    ----------
    line, column
        In the source given to the device, from 1; 0 if unknown.
    access
        ``read``, ``write``, ``barrier``, or empty if unknown.
    work_item
        Its global index, ``(x,y,z)``; empty if unknown.
    group
        Index of its work-group.
    """

    line: int = 0
    column: int = 0
    access: Access = ""
    work_item: str = ""
    group: str = ""


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes
    ----------
    kind
        Kind of fault.
    headline
        Its first line.
    kernel
        The kernel's symbol; empty if unknown.
    places
        Two for a race, one otherwise, none if unknown.
    address_space
        ``global``, ``local``, ``private``, ``constant``; empty without an address.
    address
        The simulator's address, with the buffer's number in the upper 16 bits; None if unknown.
    nbytes
        Size of the access; 0 if unknown.
    """

    kind: Kind
    headline: str
    kernel: str = ""
    places: tuple[Place, ...] = ()
    address_space: str = ""
    address: int | None = None
    nbytes: int = 0
