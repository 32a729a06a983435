"""What ``tapml rpc tracker`` takes; imports nothing heavy, so that ``--help`` is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_BIND: Final = "tcp://127.0.0.1:9190"


@dataclass(frozen=True)
class TrackerOptions:
    """What ``tapml rpc tracker`` takes; the help texts explain it. Empty texts mean none.

    `relay_port` 0 takes the next port after the address's that is not the WebSocket's, or a free
    one if `bind` takes a free one as well. `clients` and `tokens` are by default the user's own
    files, the certificate of ``wss://`` one that is made here. `silence_seconds` is in seconds. The
    tracker ends with the process `parent`, 0 for none.
    """

    bind: str = DEFAULT_BIND
    relay_port: int = 0
    key: str = ""
    clients: str = ""
    websocket: str = ""
    tokens: str = ""
    certificate: str = ""
    certificate_key: str = ""
    origins: tuple[str, ...] = ()
    silence_seconds: float = 10.0
    parent: int = 0
