"""Hosts' names, looked up within a time, and what is said where that fails."""

from __future__ import annotations

import ipaddress
import socket
import threading
from contextlib import suppress

from tapml_targets.errors import UnreachableError


def numeric(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """A numeric address, of IPv4 where IPv6 only wraps it; raises ValueError for others."""
    number = ipaddress.ip_address(address)
    return getattr(number, "ipv4_mapped", None) or number


def look_up(host: str, seconds: float) -> None:
    """Raise UnreachableError if a name has no address, or none is known after `seconds`.

    Numeric addresses are not looked up.
    """
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return
    failed: list[Exception] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            failed.append(error)

    # The system's own patience cannot be set: 5 s and more for each name server.
    asking = threading.Thread(target=ask, name="tapml-look-up", daemon=True)
    asking.start()
    asking.join(seconds)
    if asking.is_alive():
        raise UnreachableError(
            f"the name {host!r} could not be looked up within {seconds:g} s: no name server "
            "answers; give the host's number"
        )
    if failed:
        raise UnreachableError(f"{of_failure(host, failed[0])}: {failed[0]}")


def of_failure(host: str, error: Exception) -> str:
    """What the failure of a look-up says: there may be such a host where no server answered."""
    if isinstance(error, socket.gaierror) and error.errno in (socket.EAI_AGAIN, socket.EAI_FAIL):
        return f"the name {host!r} could not be looked up"
    return f"there is no host {host!r}"
