"""The actions of a run and their order: calls, copies, and the life of host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tapml.execute.binding import BoundCall
from tapml.execute.place import Place
from tapml.execute.segments import RESIDENT_BYTES, Segment


@dataclass(frozen=True)
class HostCall:
    """Run a call site on the reference."""

    call: BoundCall


@dataclass(frozen=True)
class DeviceCall:
    """Run a call site on a device."""

    call: BoundCall
    place: Place


@dataclass(frozen=True)
class Upload:
    """Copy a storage from the host to a device."""

    storage: str
    place: Place


@dataclass(frozen=True)
class Download:
    """Copy a storage from a device to the host."""

    storage: str
    place: Place


@dataclass(frozen=True)
class Observe:
    """Pass the tensors of a call site, all on the host, to the run's observer."""

    call: BoundCall


Operation: TypeAlias = HostCall | DeviceCall | Upload | Download | Observe


@dataclass(frozen=True)
class Allocate:
    """Make the host memory of a segment."""

    segment: Segment


@dataclass(frozen=True)
class Ready:
    """Every tensor of a segment is written, so it may be recorded."""

    segment: Segment


@dataclass(frozen=True)
class Release:
    """No call site reads a segment any more."""

    segment: Segment


@dataclass(frozen=True)
class HostCalls:
    """Run consecutive call sites on the reference."""

    calls: tuple[BoundCall, ...]


@dataclass(frozen=True)
class DeviceCommands:
    """Commands sent to one device together, without waiting unless there is a download."""

    place: Place
    commands: tuple[DeviceCall | Upload | Download, ...]


Action: TypeAlias = Allocate | Ready | Release | HostCalls | DeviceCommands | Observe


def schedule(operations: Sequence[Operation], segments: tuple[Segment, ...]) -> tuple[Action, ...]:
    """Merge the operations and the lifetimes of the segments into one order."""
    streaming = sum(segment.nbytes for segment in segments) > RESIDENT_BYTES
    before: dict[int, list[Action]] = {}
    after: dict[int, list[Action]] = {}
    for segment in segments:
        before.setdefault(segment.span.first, []).append(Allocate(segment))
        after.setdefault(segment.span.last_write, []).append(Ready(segment))
        if streaming and segment.kind != "state" and segment.span.last_use < len(operations):
            after.setdefault(segment.span.last_use, []).append(Release(segment))
    actions: list[Action] = []
    host: list[BoundCall] = []
    device: list[DeviceCall | Upload | Download] = []

    def close() -> None:
        if host:
            actions.append(HostCalls(tuple(host)))
            host.clear()
        if device:
            actions.append(DeviceCommands(device[0].place, tuple(device)))
            device.clear()

    for position in range(max(1, len(operations))):
        if position in before:
            close()
            actions.extend(before[position])
        for operation in operations[position : position + 1]:
            if isinstance(operation, HostCall):
                if device:
                    close()
                host.append(operation.call)
            elif isinstance(operation, Observe):
                close()
                actions.append(operation)
            else:
                if host or (device and device[0].place != operation.place):
                    close()
                device.append(operation)
        if position in after:
            close()
            actions.extend(after[position])
    close()
    return tuple(actions)
