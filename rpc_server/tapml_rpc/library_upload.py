"""Uploads a Library to a server: by hash if it is held there, otherwise in chunks."""

from __future__ import annotations

from typing import Any, Final

from tapml_rpc.blob_upload import attach_library, detach
from tapml_rpc.command_queue import PIECE_BYTES
from tapml_rpc.pending import Pending, PendingValue
from tapml_rpc.transport import BlobTransport, Ticket, Transport

# A separate stream: a kernel that does not build is the caller's to handle and must not poison
# other work.
_STREAM: Final = 1


def load_library(
    link: Transport, handle: int, digest: str, packed: bytes
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Have a Library built under `handle`; its operators and entries.

    Raises CompileError with the driver's log if a kernel does not build, InputError if the server
    refuses the Library.
    """
    attached = attach_library(link, digest, packed)
    if not attached:
        held = PendingValue()
        _run(link, ["holds", [digest]], held)
        if held.result() != [True]:
            _send(link, digest, packed)
    loaded = PendingValue()
    try:
        _run(link, ["load", handle, digest], loaded)
    finally:
        if attached and isinstance(link, BlobTransport):
            detach(link, digest)
    operators, entries = loaded.result()
    return tuple(operators), tuple(entries)


def _send(link: Transport, digest: str, packed: bytes) -> None:
    view = memoryview(packed)
    sent = []
    for start in range(0, len(view), PIECE_BYTES):
        piece = view[start : start + PIECE_BYTES]
        command = ["upload", digest, len(view), start, len(piece), 0]
        sent.append(link.send([command], piece, None, _STREAM))
    for ticket in sent:
        _finish(link, ticket)


def _run(link: Transport, command: list[Any], pending: Pending) -> None:
    _finish(link, link.send([command], b"", {0: pending}, _STREAM))


def _finish(link: Transport, ticket: Ticket) -> None:
    link.wait(ticket)
    if ticket.failure is not None:
        link.wait(link.send([["reset"]], b"", None, _STREAM))
        raise ticket.failure
