"""What a kernel takes, read from the head of its function, and its numbers as one structure.

Metal's own reflection would say as much of a built pipeline; the text says it on any machine.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tapml_targets.driver import BufferUse, KernelArgument, ScalarUse
from tapml_targets.errors import CompileError, InputError
from tapml_targets.metal.language import TYPES

FORMATS: Final = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float16": "e", "float32": "f",
}  # fmt: skip
MOST_BYTES: Final = 4096
"""Of numbers, as `setBytes:length:atIndex:` takes them."""

_COMMENTS: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PLACE: Final = re.compile(r"\[\[\s*buffer\s*\(\s*(\d+)\s*\)\s*\]\]")
_MEMBER: Final = re.compile(r"((?:unsigned\s+)?\w+)\s+(\w+)\s*;")
_STRUCTURE: Final = re.compile(r"\bconstant\s+(?:const\s+)?(\w+)\s*&")


@dataclass(frozen=True)
class Interface:
    """A kernel's buffers at the places 0 and up, then its numbers at the place behind them."""

    buffers: int
    scalars: tuple[str, ...]

    def split(
        self, kernel: str, arguments: Sequence[KernelArgument]
    ) -> tuple[list[BufferUse], bytes]:
        """A launch's buffers, and its numbers as the structure that the kernel takes.

        Raises
        ------
        InputError
            If they are not what the kernel takes.
        """
        uses = [each for each in arguments if isinstance(each, BufferUse)]
        numbers = [each for each in arguments if isinstance(each, ScalarUse)]
        if (len(uses), len(numbers)) != (self.buffers, len(self.scalars)) or len(
            uses + numbers
        ) != len(arguments):
            raise InputError(
                f"kernel {kernel!r} takes {self.buffers} buffers and {len(self.scalars)} numbers, "
                f"got {len(uses)} and {len(numbers)} of {len(arguments)} arguments"
            )
        data = bytearray()
        for use, dtype in zip(numbers, self.scalars, strict=True):
            form = f"<{FORMATS[dtype]}"
            size = struct.calcsize(form)
            data += bytes(-len(data) % size)
            try:
                data += struct.pack(form, use.value)
            except (struct.error, OverflowError):
                raise InputError(
                    f"kernel {kernel!r}: the number {use.value} does not fit {dtype}"
                ) from None
        widest = max((struct.calcsize(FORMATS[each]) for each in self.scalars), default=1)
        return uses, bytes(data) + bytes(-len(data) % widest)


def read_interface(source: str, symbol: str) -> Interface:
    """The interface of the kernel called `symbol`.

    Raises
    ------
    CompileError
        If there is none, or it is not in the form of :mod:`tapml_targets.metal`.
    """
    text = _COMMENTS.sub(" ", source)
    head = re.search(rf"\bkernel\s+void\s+{re.escape(symbol)}\s*\(", text)
    if head is None:
        raise CompileError(f"the module has no kernel {symbol!r}")
    places: list[int] = []
    scalars: tuple[str, ...] = ()
    behind = -1
    for parameter in _parameters(text, head.end()):
        place = _PLACE.search(parameter)
        structure = _STRUCTURE.search(parameter)
        if place is None:
            continue
        if structure is None:
            places.append(int(place[1]))
            continue
        scalars, behind = _members(text, structure[1], symbol), int(place[1])
    expected = list(range(len(places)))
    if sorted(places) != expected or (behind not in (-1, len(places))):
        raise CompileError(
            f"kernel {symbol!r} has buffers at the places {places}, and numbers at {behind}: "
            "expected buffers from 0 on, and behind them one structure of numbers"
        )
    return Interface(len(places), scalars)


def _parameters(text: str, start: int) -> list[str]:
    """The parameters of a function whose parenthesis opens before `start`."""
    depth, found, begin = 1, [], start
    for at in range(start, len(text)):
        depth += (text[at] in "([{<") - (text[at] in ")]}>")
        if depth == 0 or (depth == 1 and text[at] == ","):
            found.append(text[begin:at])
            begin = at + 1
        if depth == 0:
            return found
    raise CompileError("the head of a kernel does not end")


def _members(text: str, name: str, symbol: str) -> tuple[str, ...]:
    found = re.search(rf"\bstruct\s+{re.escape(name)}\s*\{{([^{{}}]*)\}}", text)
    if found is None:
        raise CompileError(f"kernel {symbol!r} takes numbers as {name!r}, which is not declared")
    members = _MEMBER.findall(found[1])
    if found[1].count(";") != len(members):
        raise CompileError(f"the members of {name!r} are not numbers: {found[1].strip()[:200]}")
    kinds = [TYPES.get(" ".join(kind.split()), "") for kind, _ in members]
    if "" in kinds:
        raise CompileError(f"{name!r} has the type {members[kinds.index('')][0]!r}, no number's")
    if sum(8 for _ in kinds) > MOST_BYTES:
        raise CompileError(f"{name!r} has {len(kinds)} numbers, more than {MOST_BYTES} bytes")
    return tuple(kinds)
