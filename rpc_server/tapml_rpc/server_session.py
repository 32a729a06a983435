"""What one client holds on a server: handles, streams, credit, the batches it has sent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tapml_rpc import wire
from tapml_rpc.libraries import BuiltLibrary, _Upload
from tapml_rpc.program_body import ProgramBody
from tapml_targets.driver import Buffer
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.prepared_call import RecordedCall

TOKEN_BYTES: Final = 16


@dataclass
class HeldBuffer:
    """Device memory behind a handle."""

    buffer: Buffer
    nbytes: int


@dataclass
class Recording:
    """A call that can be run by its handle.

    Attributes
    ----------
    library
        Handle of its Library.
    built
        The Library itself.
    call
        The call with its memory.
    buffers
        Every buffer it uses, with its handle.
    checked
        The session's `releases` when all of that was last known to be there.
    """

    library: int
    built: BuiltLibrary
    call: RecordedCall
    buffers: tuple[tuple[int, HeldBuffer], ...]
    checked: int


class Arriving(Protocol):
    """A chunk that has not come yet. What runs its batch receives it, and waits for it.

    Attributes
    ----------
    nbytes
        Of all of it.
    """

    nbytes: int

    def receive_into(self, memory: memoryview) -> None:
        """Receive all of it; raises ClientGoneError where it does not come."""

    def finish(self) -> None:
        """Receive it and forget it, unless it has been received."""


@dataclass
class Message:
    """A batch as it came, with the identity of the connection it came on.

    `arriving` is its chunk where it has not come with it; the batch is one write of all of it then.
    """

    identity: bytes
    sequence: int
    stream: int
    commands: list[Any]
    chunk: memoryview
    arriving: Arriving | None = None


@dataclass
class ServerSession:
    """One client's state. Buffers and batches belong to the device thread.

    The control thread writes `heard`, `cancel_through` and `ended` only.

    Attributes
    ----------
    token
        What every request carries; random, so that no other client can speak for this one.
    control_identity, data_identity
        Its connections; a session lives as long as both. The latter is empty before a message came.
    download_credit
        Chunk bytes the client is ready to take.
    failures
        Per poisoned stream the first error, as it goes over the wire.
    spare
        Freed buffers by size, for the next allocation: a test that allocates the same tensors again
        gets the same memory, which saves the driver's work and keeps prepared calls valid.
    releases
        Buffers and Libraries let go so far: while it stands still, no recorded call has lost one.
    cancel_through
        Batches up to this sequence number are not to be run.
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
        """The memory behind a handle; raises InputError where there is none."""
        try:
            return self.buffers[handle]  # type: ignore[index]
        except (KeyError, TypeError):
            raise InputError(
                f"no buffer has the handle {str(handle)[:40]}: it was freed, or its allocation "
                "failed or was skipped on a poisoned stream"
            ) from None

    def new_handle(self, handle: object, most: int) -> int:
        """Check a handle the client has chosen; raises where it is in use or one too many."""
        number = wire.integer(handle, "handle")
        if number in self.buffers or number in self.libraries or number in self.recordings:
            raise ProtocolError(f"handle {number} is in use")
        if len(self.buffers) + len(self.libraries) + len(self.recordings) >= most:
            raise InputError(f"this session already holds {most} handles")
        return number
