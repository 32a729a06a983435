"""What a server holds for one client: handles, streams, credit, its batches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.libraries import BuiltLibrary, _Upload
from tapml_rpc.program_body import ProgramBody
from tapml_targets.driver import Buffer
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.prepared_call import RecordedCall

TOKEN_BYTES: Final = 16
EPOCH_BYTES: Final = 8


@dataclass
class HeldBuffer:
    """Device memory behind a handle."""

    buffer: Buffer
    nbytes: int


@dataclass
class Recording:
    """A call that can be run by its handle.

    `library` is its Library's handle, `built` the Library. `buffers` are all that it uses, with
    their handles. `checked` is the session's `releases` when all of that was last known to exist.
    """

    library: int
    built: BuiltLibrary
    call: RecordedCall
    buffers: tuple[tuple[int, HeldBuffer], ...]
    checked: int


@dataclass
class Message:
    """A received batch, with the identity of its connection."""

    identity: bytes
    sequence: int
    stream: int
    commands: list[Any]
    chunk: memoryview


@dataclass
class ServerSession:
    """One client's state. Buffers and batches belong to the device thread.

    The control thread writes `heard`, `cancel_through` (batches up to this number are not to be
    run) and `ended` only. The random `token` is in every request, so that no other client can speak
    for this one. A session lives as long as both its connections; `data_identity` is empty before a
    message. The client is ready to take `download_credit` chunk bytes. `failures` are the first
    errors of poisoned streams, in wire form. `spare` are freed buffers by size: a test that
    allocates the same tensors again gets the same memory, which saves the driver's work and keeps
    prepared calls valid. While `releases` of buffers and Libraries is unchanged, no recorded call
    has lost one.
    """

    token: bytes
    control_identity: bytes
    download_credit: int
    kernel_deadline: float
    buffers: dict[int, HeldBuffer] = field(default_factory=dict)
    libraries: dict[int, BuiltLibrary] = field(default_factory=dict)
    recordings: dict[int, Recording] = field(default_factory=dict)
    programs: dict[str, ProgramBody] = field(default_factory=dict)
    releases: int = 0
    uploads: dict[str, _Upload] = field(default_factory=dict)
    failures: dict[int, dict[str, Any]] = field(default_factory=dict)
    queue: deque[Message] = field(default_factory=deque)
    job: Iterator[None] | None = None
    spare: dict[int, deque[Buffer]] = field(default_factory=dict)
    spare_bytes: int = 0
    nbytes: int = 0
    answered: int = 0
    heard: float = field(default_factory=time.monotonic)
    cancel_through: int = -1
    data_identity: bytes = b""
    ended: str = ""

    def buffer(self, handle: object) -> HeldBuffer:
        """The memory behind a handle; raises InputError if there is none."""
        try:
            return self.buffers[handle]  # type: ignore[index]
        except (KeyError, TypeError):
            raise InputError(
                f"no buffer has the handle {str(handle)[:40]}: it was freed, or its allocation "
                "failed or was skipped on a poisoned stream"
            ) from None

    def new_handle(self, handle: object, most: int) -> int:
        """Check a new handle of the client; raises if it is in use or one too many."""
        number = wire.integer(handle, "handle")
        if number in self.buffers or number in self.libraries or number in self.recordings:
            raise ProtocolError(f"handle {number} is in use")
        if len(self.buffers) + len(self.libraries) + len(self.recordings) >= most:
            raise InputError(f"this session already holds {most} handles")
        return number
