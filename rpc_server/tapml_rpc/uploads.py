"""Uploads bytes to a device by their hash: what its server holds already is not sent again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tapml_rpc import wire
from tapml_rpc.command_queue import PIECE_BYTES
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.transport import Pending, Ticket, Transport
from tapml_targets.errors import DeviceLostError, InputError, SetupError, TapmlError

if TYPE_CHECKING:
    from tapml_rpc.remote import RemoteBuffer
    from tapml_rpc.session import Session

SMALL_BYTES: Final = 64 << 10
"""Bytes below which hashing and asking cost more than sending."""
# Bytes attached at a time, and one more blob: the store never evicts what is attached.
_GROUP_BYTES: Final = 64 << 20
_GROUP_BLOBS: Final = 16
_ASKED_AT_ONCE: Final = 4096
_HASHED_TOGETHER_BYTES: Final = 16 << 20
_HASHING_THREADS: Final = 4
# Between tries to find room for a Library.
_ROOM_SECONDS: Final = 0.25, 0.5, 1.0


class BlobWrite(NamedTuple):
    """Bytes for a window of a buffer.

    `data` is any contiguous buffer. `digest` is the SHA-256 of the bytes in hex if the caller knows
    it, and is not checked here; None has it computed.
    """

    buffer: RemoteBuffer
    data: Any
    byte_offset: int = 0
    digest: str | None = None


@dataclass
class _Attaching:
    writes: list[tuple[BlobWrite, memoryview, str]] = field(default_factory=list)
    nbytes: int = 0
    puts: list[list[Ticket]] = field(default_factory=list)
    attaches: dict[str, Ticket] = field(default_factory=dict)
    pastes: list[Ticket] = field(default_factory=list)


def write_large(session: Session, given: list[tuple[BlobWrite, memoryview]]) -> int:
    """Write bytes of at least ``SMALL_BYTES`` each by their hash; the bytes that were sent."""
    link, writes = session._link, _named(given)
    held = _held(link, list(dict.fromkeys(digest for _, _, digest in writes)))
    sent = 0
    earlier = _Attaching()
    try:
        for group in _groups(writes):
            sent += _bring(link, group, held)
            # The earlier pastes ran meanwhile.
            _let_go(link, earlier, keep=group.attaches)
            earlier = group
            sent += _paste(session, group, held)
    finally:
        _let_go(link, earlier, keep={})
    return sent


def _paste(session: Session, group: _Attaching, held: set[str]) -> int:
    """Have the device copy what is attached, and send the rest; the bytes sent."""
    sent = 0
    # The pieces after one that was refused are refused because of it.
    refused = [
        next((each.failure for each in tickets if each.failure is not None), None)
        for tickets in group.puts
    ]
    refused += [each.failure for each in group.attaches.values()]
    for failure in refused:
        if failure is not None and not isinstance(failure, InputError | SetupError):
            raise failure
    for write, view, digest in group.writes:
        if group.attaches[digest].value is True:
            fields = [write.buffer.handle, write.byte_offset, digest, 0, len(view)]
            session._add(["paste", *fields], 100)
            continue
        # No room, or just evicted: it is sent as a plain write.
        held.discard(digest)
        session.write(write.buffer, view, write.byte_offset)
        sent += len(view)
    session._queue.flush()
    group.pastes = [ticket for ticket in session._queue.sent if not ticket.done]
    return sent


def _named(writes: list[tuple[BlobWrite, memoryview]]) -> list[tuple[BlobWrite, memoryview, str]]:
    """Writes with the hash of their bytes, computed by several threads if there are many bytes."""

    def name(write: tuple[BlobWrite, memoryview]) -> str:
        return write[0].digest or hashlib.sha256(write[1]).hexdigest()

    if len(writes) < 2 or sum(len(view) for _, view in writes) < _HASHED_TOGETHER_BYTES:
        digests = [name(write) for write in writes]
    else:
        threads = min(_HASHING_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, "tapml-hashing") as pool:
            digests = list(pool.map(name, writes))
    return [(*write, digest) for write, digest in zip(writes, digests, strict=True)]


def _bring(link: Transport, group: _Attaching, held: set[str]) -> int:
    """Have a group's blobs attached, sending the missing ones; bytes sent."""
    sent = 0
    try:
        for _, view, digest in group.writes:
            if digest not in held:
                held.add(digest)
                sent += len(view)
                group.puts.append(put(link, digest, view))
            if digest not in group.attaches:
                group.attaches[digest] = attach(link, digest)
    finally:
        # Blobs are sent from the caller's memory.
        _wait(link, [*chain.from_iterable(group.puts), *group.attaches.values()])
    return sent


def _let_go(link: Transport, group: _Attaching, *, keep: dict[str, Ticket]) -> None:
    """Detach a group's blobs once they are pasted, except those used again."""
    _wait(link, group.pastes)
    for digest, ticket in group.attaches.items():
        if ticket.value is True and digest not in keep:
            detach(link, digest)


def attach(link: Transport, digest: str) -> Ticket:
    """Ask for a blob to be attached; the ticket's value says whether it is."""
    return link.request({"type": "blob", "operation": "attach", "digest": digest})


def detach(link: Transport, digest: str) -> None:
    """Detach a blob; a lost session holds none."""
    with suppress(DeviceLostError):
        link.request({"type": "blob", "operation": "detach", "digest": digest})


def put(link: Transport, digest: str, view: memoryview) -> list[Ticket]:
    """Send a blob; `view` must not change until the tickets are answered."""
    fields = {"type": "blob", "operation": "put", "digest": digest, "total": len(view)}
    return [
        link.request({**fields, "offset": start}, view[start : start + PIECE_BYTES])
        for start in range(0, len(view), PIECE_BYTES)
    ]


def _held(link: Transport, digests: list[str]) -> set[str]:
    """Which of these the server holds for us."""
    asked = [
        digests[start : start + _ASKED_AT_ONCE] for start in range(0, len(digests), _ASKED_AT_ONCE)
    ]
    tickets = [
        link.request({"type": "blob", "operation": "holds", "digests": part}) for part in asked
    ]
    held: set[str] = set()
    for part, ticket in zip(asked, tickets, strict=True):
        link.wait(ticket)
        if ticket.failure is not None:
            raise ticket.failure
        answers = wire.array(ticket.value, "held blobs", len(part))
        held.update(digest for digest, answer in zip(part, answers, strict=False) if answer is True)
    return held


def _groups(writes: list[tuple[BlobWrite, memoryview, str]]) -> Iterator[_Attaching]:
    """Groups of blobs to attach at the same time."""
    group = _Attaching()
    for write in writes:
        group.writes.append(write)
        group.nbytes += len(write[1])
        if group.nbytes >= _GROUP_BYTES or len(group.writes) >= _GROUP_BLOBS:
            yield group
            group = _Attaching()
    if group.writes:
        yield group


def _wait(link: Transport, tickets: list[Ticket]) -> None:
    for ticket in tickets:
        link.wait(ticket)


class _Loaded(Pending[tuple[tuple[str, ...], tuple[str, ...]]]):
    """Operators and entries of a Library, or why it was not built."""

    def resolve(self, value: Any, chunk: memoryview) -> None:
        """Take ``[operators, entries]``, or an error."""
        if isinstance(value, dict):
            self.fail(failure_from_wire(value))
            return
        operators, entries = wire.array(value, "Library", 2)
        super().resolve((tuple(operators), tuple(entries)), chunk)


def load_library(
    link: Transport, handle: int, digest: str, packed: bytes
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Have a Library built under `handle`: operators, entries.

    It is sent unless the server holds it. Raises CompileError if a kernel does not build,
    InputError if the device refuses it, or its server has no room for it.
    """
    refused = _attach_library(link, digest, packed)
    loaded = _Loaded()
    try:
        link.wait(link.send([["load", handle, digest]], b"", {0: loaded}))
    finally:
        if refused is None:
            detach(link, digest)
    try:
        return loaded.result()
    except InputError:
        # Without its bytes, a Library loads where it was built before.
        if refused is None:
            raise
        raise refused from None


def _attach_library(link: Transport, digest: str, packed: bytes) -> TapmlError | None:
    """Have a Library attached, sending it if it is not held; why that was refused, else None.

    It waits a little for room, which others' Libraries take only until they are built. Raises what
    is refused for another reason.
    """
    refused: TapmlError | None = None
    for seconds in (0.0, *_ROOM_SECONDS):
        time.sleep(seconds)
        tickets = [attach(link, digest)]
        link.wait(tickets[0])
        most = link.bounds.library_bytes
        if tickets[0].value is False and len(packed) > most:
            return _no_room(packed, f"it takes at most {most}")
        if tickets[0].value is False:
            tickets = [*put(link, digest, memoryview(packed)), attach(link, digest)]
            _wait(link, tickets)
        if tickets[-1].value is True:
            return None
        # The pieces after one that was refused are refused because of it.
        failure = next((each.failure for each in tickets if each.failure is not None), None)
        if failure is not None and not isinstance(failure, InputError | SetupError):
            raise failure
        refused = _no_room(packed, str(failure or "it was evicted at once"))
    return refused


def _no_room(packed: bytes, why: str) -> InputError:
    return InputError(
        f"the server does not take this Library of {len(packed)} bytes now: {why}; try again when "
        "other sessions are done, or start the server with more --blob-bytes"
    )
