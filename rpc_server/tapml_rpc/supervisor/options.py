"""What ``tapml rpc serve`` takes; imports nothing heavy, so that ``--help`` is quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tapml_targets.host_memory import usable_bytes
from tapml_targets.platforms import DEFAULT_PLATFORM

MOST_BLOB_BYTES: Final = 4 << 30
_SHARE: Final = 4
BLOB_DISK_BYTES: Final = 32 << 30


def usual_blob_bytes() -> int:
    """A quarter of the usable memory, at most 4 GiB: a small board keeps less."""
    return min(MOST_BLOB_BYTES, (usable_bytes() or MOST_BLOB_BYTES) // _SHARE)


@dataclass(frozen=True)
class SupervisorOptions:
    """What ``tapml rpc serve`` takes; the help texts explain it, and empty texts mean none.

    Port 0 takes a free one. `session_bytes` 0 is the default bound. Without `key` it serves on
    loopback only. `clients` and `tokens` default to the user's own files, the certificate of
    ``wss://`` to one that is made here. `origins` are pages that may connect beside those of this
    machine. `blob_bytes` is memory for what is kept by hash; 0 keeps no weights. `through_tracker`
    says that clients cannot reach this machine directly.
    """

    device: str = DEFAULT_PLATFORM
    bind: str = "tcp://127.0.0.1:0"
    data_port: int = 0
    allow_shared_libraries: bool = False
    kernel_deadline: float = 60.0
    silence_seconds: float = 60.0
    session_bytes: int = 0
    limits: str = ""
    websocket: str = ""
    key: str = ""
    clients: str = ""
    tokens: str = ""
    certificate: str = ""
    certificate_key: str = ""
    origins: tuple[str, ...] = ()
    blob_bytes: int = field(default_factory=usual_blob_bytes)
    blob_folder: str = ""
    blob_disk_bytes: int = BLOB_DISK_BYTES
    tracker: str = ""
    name: str = ""
    through_tracker: bool = False
