"""A server's bounds: every size and count a peer can make it hold, sent in the welcome."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from tapml_rpc import wire

# Missing if a server lacks the feature `programs`.
_LATER: Final = frozenset({"programs", "program_commands", "program_bytes"})


@dataclass(frozen=True)
class Bounds:
    """Bounds of one server, sent in its welcome.

    Attributes
    ----------
    chunk_bytes
        Largest chunk of one message, either way.
    commands
        Commands in one batch.
    unanswered
        Unanswered batches of a client.
    upload_window
        Chunk bytes in unanswered batches of a client.
    download_window
        Most chunk bytes of streamed reads that the server sends ahead of a client's credit.
    handles
        Buffers and Libraries of one session.
    session_bytes
        Device memory of one session.
    library_bytes
        One packed Library.
    held_library_bytes
        All Libraries the server keeps by hash.
    sessions
        Sessions at a time.
    streams
        Streams of one session.
    programs, program_commands, program_bytes
        Programs of one session; the commands of one of them; all of them together on the wire. 0
        from a server without programs.
    """

    chunk_bytes: int = wire.MAX_CHUNK_BYTES
    commands: int = 4096
    unanswered: int = 64
    upload_window: int = 16 << 20
    download_window: int = 64 << 20
    handles: int = 65536
    session_bytes: int = 64 << 30
    library_bytes: int = 256 << 20
    held_library_bytes: int = 1 << 30
    sessions: int = 32
    streams: int = 64
    programs: int = 64
    program_commands: int = 1024
    program_bytes: int = 4 << 20

    def to_wire(self) -> dict[str, int]:
        """Plain data for the welcome."""
        return asdict(self)

    @classmethod
    def from_wire(cls, data: Any) -> Bounds:
        """Check a welcome's bounds, ignoring unknown ones.

        Raises ProtocolError for a malformed one.
        """
        given = data if isinstance(data, dict) else {}
        return cls(
            **{
                field.name: wire.integer(
                    given.get(field.name, 0 if field.name in _LATER else None),
                    f"bound {field.name!r}",
                )
                for field in fields(cls)
            }
        )
