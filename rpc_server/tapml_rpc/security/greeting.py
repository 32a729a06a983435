"""What a ZeroMQ peer announces before any key is checked.

A server without encryption and one with another key may both disconnect first, and libzmq then
reports neither. The greeting (ZMTP 3.0, rfc.zeromq.org/spec/23) names the mechanism in clear.
"""

from __future__ import annotations

import socket
import time
from typing import Final

_GREETING_BYTES: Final = 64
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_VERSION: Final = b"\x03\x00"
_MECHANISM: Final = slice(12, 32)


def greeted_mechanism(address: str, seconds: float) -> str | None:
    """The mechanism in the greeting of ``tcp://host:port``: ``"NULL"``, ``"CURVE"``, ``"PLAIN"``.

    None if nothing answers within `seconds`, or the peer greets otherwise.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    deadline = time.monotonic() + seconds
    heard = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as peer:
            # The rest of ours, with a mechanism it may refuse, is never sent.
            peer.sendall(_SIGNATURE + _VERSION)
            while len(heard) < _GREETING_BYTES:
                peer.settimeout(max(0.001, deadline - time.monotonic()))
                part = peer.recv(_GREETING_BYTES - len(heard))
                if not part:
                    return None
                heard += part
    except (OSError, ValueError):
        return None
    if heard[0] != _SIGNATURE[0] or heard[9] != _SIGNATURE[9]:
        return None
    return heard[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")
