"""A batch while it runs, and the answer that grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tapml_rpc import wire
from tapml_rpc.server_session import Message, ServerSession
from tapml_targets.errors import ProtocolError
from tapml_targets.prepared_call import CallReport


@dataclass
class RunningBatch:
    """A batch being run and what its answer will hold."""

    session: ServerSession
    message: Message
    results: list[list[Any]] = field(default_factory=list)
    inline: list[memoryview | bytes] = field(default_factory=list)
    inline_bytes: int = 0
    timed: list[tuple[list[Any], CallReport]] = field(default_factory=list)

    def give(self, index: int, value: Any) -> None:
        """Put a command's result into the answer."""
        self.results.append([index, value])

    def window(self, offset: object, nbytes: object) -> memoryview:
        """The part of the chunk a command names."""
        start = wire.integer(offset, "chunk offset")
        length = wire.integer(nbytes, "byte count")
        if start + length > len(self.message.chunk):
            raise ProtocolError(
                f"command names bytes {start} to {start + length} of a chunk of "
                f"{len(self.message.chunk)}"
            )
        return self.message.chunk[start : start + length]
