"""Reads Oclgrind's log: one message per fault, with kernel, work-items and source lines.

The log is text for people; its format is known from Oclgrind's source (``core/Context.cpp``,
``core/WorkGroup.cpp``, ``plugins/*.cpp`` of versions 19.10 to 21.10). A message is a headline at
the start of a line, followed by lines that begin with a tab. Unknown messages have the kind
``other``; no log raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tapml_targets.check_messages import Access, Kind, Message, Place

_ADDRESS: Final = r"(global|local|private|constant|\(unknown\)) memory address 0x([0-9a-f]{1,16})"
_HEADLINES: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = (
    (re.compile(r"Invalid read of size (?P<size>\d{1,9}) at " + _ADDRESS), "out-of-bounds read"),
    (re.compile(r"Invalid write of size (?P<size>\d{1,9}) at " + _ADDRESS), "out-of-bounds write"),
    (re.compile(r"Index \(-?\d+\) exceeds static array size"), "array index out of range"),
    (re.compile(r"(?:Read-write|Write-write) data race at " + _ADDRESS), "data race"),
    (re.compile(r"Work-group divergence detected"), "barrier divergence"),
    (re.compile(r"Uninitialized (?:value written to|address used to .*?) " + _ADDRESS),
     "uninitialised value"),
    (re.compile(r"Controlflow depends on uninitialized value"), "uninitialised value"),
    (re.compile(r"Instruction depends on an uninitialized index"), "uninitialised value"),
    (re.compile(r"Invalid memory (?:load|store) - source pointer is not aligned"),
     "unaligned access"),
    (re.compile(r"Unaligned address"), "unaligned access"),
    (re.compile(r"OCLGRIND FATAL ERROR"), "simulator error"),
)  # fmt: skip
_BUILT_INS: Final[dict[str, Access]] = {
    "barrier": "barrier",
    "vload": "read",
    "vstore": "write",
    "atom": "write",
}
_BUILT_IN: Final = re.compile(rf"@_Z\d+({'|'.join(_BUILT_INS)})")
_HEADLINE_CHARACTERS: Final = 500
_SILENCED: Final = re.compile(r"Oclgrind: \d+ errors generated - suppressing")
_KERNEL: Final = re.compile(r"\tKernel:\s+(\S{1,512})")
_WORK_ITEM: Final = re.compile(r"Global(\(\d+,\d+,\d+\))(?: Local(\(\d+,\d+,\d+\)))?")
_GROUP: Final = re.compile(r"Group(\(\d+,\d+,\d+\))|Work-group:\s+(\(\d+,\d+,\d+\))")
_LOCATION: Final = re.compile(r"\tAt line (\d{1,9}) \(column (\d{1,9})\) of ")
_INSTRUCTION: Final = re.compile(r"\t\s*(?:%\S+ = )?(?:tail )?(load|store|call)\b(.*)")


def read_messages(text: str) -> Iterator[Message]:
    """Every message of a log, in order. A truncated last message is read as far as possible."""
    for block in _blocks(text):
        headline = block[0]
        if _SILENCED.match(headline):
            continue
        yield _message(headline, block[1:])


def is_silenced(text: str) -> bool:
    """Whether Oclgrind has stopped logging."""
    return any(_SILENCED.match(line) for line in text.split("\n"))


def _blocks(text: str) -> Iterator[list[str]]:
    """A headline and its further lines."""
    block: list[str] = []
    after_headline = False
    for line in text.split("\n"):
        if line.startswith("\t"):
            # Without a headline, it is the rest of a message that began before the log.
            if block:
                block.append(line)
            after_headline = False
        elif not line.strip():
            after_headline = False
        elif after_headline:
            block[0] += f" {line.strip()}"
        else:
            if block:
                yield block
            block = [line]
            after_headline = True
    if block:
        yield block


def _message(headline: str, lines: list[str]) -> Message:
    kind: Kind = "other"
    space, address, size = "", None, 0
    for pattern, named in _HEADLINES:
        match = pattern.match(headline)
        if match is None:
            continue
        kind = named
        if "size" in pattern.groupindex:
            size = int(match["size"])
        if pattern.groups > 1:
            space, number = match.groups()[-2:]
            space, address = space.strip("()"), int(number, 16)
        break
    kernel = next((found[1] for line in lines if (found := _KERNEL.match(line))), "")
    return Message(
        kind,
        headline.strip()[:_HEADLINE_CHARACTERS],
        kernel,
        tuple(_places(lines)),
        space,
        address,
        size,
    )


def _places(lines: list[str]) -> Iterator[Place]:
    work_item = group = ""
    access: Access = ""
    for line in lines:
        if match := _WORK_ITEM.search(line):
            work_item = match[1]
        if match := _GROUP.search(line):
            group = match[1] or match[2]
        if match := _INSTRUCTION.match(line):
            access = _access(match[1], match[2])
        if match := _LOCATION.match(line):
            yield Place(int(match[1]), int(match[2]), access, work_item, group)
            access = ""


def _access(instruction: str, rest: str) -> Access:
    if instruction == "load":
        return "read"
    if instruction == "store":
        return "write"
    # Built-in functions by their mangled names: @_Z7barrierj, @_Z7vstore4Dv4_fjPU3AS3f.
    match = _BUILT_IN.search(rest)
    return _BUILT_INS[match[1]] if match else ""
