"""Where a server may listen, and whether its options have an effect there."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from tapml_rpc.host_names import numeric
from tapml_targets.errors import InputError, SetupError

SCHEMES: Final = ("tcp", "ws", "wss")
_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - what is looked for, to refuse it

Resolve: TypeAlias = Callable[[str, int], list[Any]]


def _resolve(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)


def check_bind(
    address: str, *, secret: bool, schemes: Sequence[str] = SCHEMES, resolve: Resolve = _resolve
) -> tuple[str, int]:
    """Numeric host and port that a server may bind to.

    `address` is ``tcp://HOST:PORT``, ``ws://HOST:PORT`` or ``wss://HOST:PORT``, one of
    `schemes`. A host is a name, an address, ``[IPv6]``, or ``*`` for all of IPv4; a name is
    resolved once, here, so that what is bound is what was checked. Port 0 takes a free one.
    `secret`: clients have to authenticate, by keys on ``tcp``, by a token on ``wss``. Raises
    InputError for a malformed address or an unknown name, SetupError if it is not on loopback
    and there is no secret, or the secret would travel unencrypted.
    """
    parts = split_address(address, schemes)
    if parts is None:
        raise InputError(
            f"expected an address to listen on such as {schemes[0]}://127.0.0.1:0, got {address!r}"
        )
    scheme, host, port = parts
    number = _numeric(host, port, resolve)
    if number is not None and is_loopback(number):
        return number, port
    example = f"{scheme}://127.0.0.1:{port}"
    if scheme == "ws":
        raise SetupError(
            f"refusing to listen on {host}: without encryption only loopback is safe, for a token "
            f"could be read on its way. Use wss://, or {example} and a tunnel such as `ssh -L`"
        )
    if not secret:
        what = (
            "make keys with `tapml rpc keygen --name device` and serve with them"
            if scheme == "tcp"
            else "serve with a token, which `tapml rpc keygen --token` makes"
        )
        raise SetupError(
            f"refusing to listen on {host}: without a secret only loopback is safe. Either {what}, "
            f"or use {example} and reach it through a tunnel such as `ssh -L`"
        )
    if number is None:
        raise InputError(f"no address is known for {host!r}; give one of this machine's addresses")
    return number, port


def is_loopback(number: str) -> bool:
    """Whether a numeric address reaches only this machine."""
    return numeric(number).is_loopback


def bracketed(host: str) -> str:
    """A numeric host in the form of a URL."""
    return f"[{host}]" if ":" in host else host


def reachable(address: str, host: str) -> str:
    """An address, with `host` in it if it stands for all addresses of a machine."""
    parts = urlsplit(address)
    if parts.hostname not in (_EVERYWHERE, "::"):
        return address
    return parts._replace(netloc=f"{bracketed(host)}:{parts.port}").geturl()


def split_address(address: str, schemes: Sequence[str]) -> tuple[str, str, int] | None:
    """Scheme, host and port of ``SCHEME://HOST:PORT``; None for any other text or scheme."""
    try:
        parts = urlsplit(address)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        return None
    # urlsplit is generous: an address has no users, paths or spaces.
    if scheme not in schemes or not host or port is None or not address.isprintable():
        return None
    whole = f"{scheme}://{bracketed(host)}:{port}"
    return (scheme, host, port) if address.lower() == whole else None


def _numeric(host: str, port: int, resolve: Resolve) -> str | None:
    if host == "*":
        return _EVERYWHERE
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = [entry[4][0] for entry in resolve(host, port)]
    except (OSError, UnicodeError):
        return None
    # IPv4 first: what most devices and tunnels speak.
    found.sort(key=lambda number: ":" in number)
    return str(found[0]) if found else None


_FOR_KEYS: Final = ("clients",)
_FOR_WEBSOCKET: Final = ("tokens", "certificate", "certificate_key", "origins")


def check_effects(options: Any) -> None:
    """Raise InputError for options about keys and WebSockets without keys and WebSockets.

    `options` are those of a server or of a tracker.
    """
    without_key = [] if options.key else _given(options, _FOR_KEYS)
    if without_key:
        raise InputError(
            f"{' and '.join(without_key)} without --key: without this machine's own key "
            "clients are not asked for theirs. `tapml rpc keygen` makes one, --key FILE.secret "
            "names it"
        )
    without_socket = [] if options.websocket else _given(options, _FOR_WEBSOCKET)
    if without_socket:
        raise InputError(
            f"{' and '.join(without_socket)} without --websocket: no WebSocket is served. Give "
            "--websocket wss://HOST:PORT, or ws://127.0.0.1:PORT, as well"
        )


def _given(options: object, names: tuple[str, ...]) -> list[str]:
    return [
        "--origin" if name == "origins" else f"--{name.replace('_', '-')}"
        for name in names
        if getattr(options, name)
    ]
