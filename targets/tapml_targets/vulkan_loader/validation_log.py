"""Reads the validation layer's log: one message per fault, with kernel, invocation and line.

The log is a row of JSON objects (the layer's ``message_format_json``). What a fault is follows from
its identifier; its places are in a text for people, whose form is known from the layer's source
(``gpuav/instrumentation/gpuav_instrumentation.cpp``, ``gpuav_shader_instrumentor.cpp``). Unknown
faults have the kind ``other``; no log raises an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import msgspec

from tapml_targets.check_messages import Access, Kind, Message, Place

_DECODER: Final = json.JSONDecoder()
_FAULTS: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = (
    (re.compile(r"SharedMemoryDataRace"), "data race"),
    (re.compile(r"SYNC-HAZARD"), "data race"),
    (re.compile(r"descriptor .*index.* out of bounds|invalid resource index", re.I),
     "array index out of range"),
    (re.compile(r"access out of bounds|out of bounds access"), "out-of-bounds access"),
    (re.compile(r"GPU-Assisted-Validation|Internal Error"), "simulator error"),
)  # fmt: skip
_LINE: Final = re.compile(r"Shader validation error occurred at (?:[^\n]*?:)?(\d{1,9})\b")
_INVOCATION: Final = re.compile(r"Global invocation ID \(x, y, z\) = \((\d+), (\d+), (\d+)\)")
_BYTE: Final = re.compile(r"out of bounds access was at \[(\d{1,15})\]")
_BUFFER: Final = re.compile(r"\(VkBuffer 0x[0-9a-f]+\[buffer (\d{1,6})\]\)")
_BUFFER_BITS: Final = 48
_HEADLINE_CHARACTERS: Final = 500


class _Object(msgspec.Struct):
    type: str = ""
    name: str = ""


class _Entry(msgspec.Struct):
    severity: str = msgspec.field(name="Severity", default="")
    identifier: str = msgspec.field(name="VUID", default="")
    text: str = msgspec.field(name="MainMessage", default="")
    objects: list[_Object] = msgspec.field(name="Objects", default_factory=list)


def buffer_name(number: int) -> str:
    """What a driver calls its buffer `number`, so that a message names it."""
    return f"buffer {number}"


def read_messages(text: str) -> Iterator[Message]:
    """Every fault of a log, in order; a truncated last one is left out."""
    at = 0
    while (at := text.find("{", at)) >= 0:
        try:
            entry, at = _DECODER.raw_decode(text, at)
            known = msgspec.convert(entry, _Entry)
        except (ValueError, RecursionError):
            # No object, or not one of the layer's.
            at = max(at, 0) + 1
            continue
        if known.severity == "Error":
            yield _message(known)


def is_silenced(text: str) -> bool:
    """Whether the layer stopped logging: it never does, its limit on repetitions is off."""
    del text
    return False


def _message(entry: _Entry) -> Message:
    told = f"{entry.identifier}: {entry.text}"
    kind: Kind = next((named for pattern, named in _FAULTS if pattern.search(told)), "other")
    kernel = next((each.name for each in entry.objects if each.type == "VkPipeline"), "")
    message = Message(kind, _headline(entry), kernel, tuple(_places(entry)))
    if entry.identifier.startswith("SharedMemoryDataRace"):
        return replace(message, address_space="local")
    byte, buffer = _BYTE.search(entry.text), _BUFFER.search(entry.text)
    if byte is None or buffer is None:
        return message
    address = (int(buffer[1]) << _BUFFER_BITS) + int(byte[1])
    return replace(
        message,
        headline=f"Access out of bounds at global memory address {address:#x}",
        address_space="global",
        address=address,
    )


def _headline(entry: _Entry) -> str:
    first = entry.text.strip().split("\n", 1)[0]
    return f"{first} [{entry.identifier}]"[:_HEADLINE_CHARACTERS]


def _places(entry: _Entry) -> Iterator[Place]:
    """The place of the access, before it the other one of a race."""
    lines = [int(number) for number in _LINE.findall(entry.text)]
    invocation = _INVOCATION.search(entry.text)
    who = f"({','.join(invocation.groups())})" if invocation else ""
    own: Access = ""
    if "performing a load" in entry.text:
        own = "read"
    elif "performing a store" in entry.text or "performing an atomic" in entry.text:
        own = "write"
    for number in lines[:-1]:
        # Two loads are no race: what a load meets is a store.
        yield Place(number, 0, "write" if own == "read" else "")
    for number in lines[-1:]:
        yield Place(number, 0, own, who)
