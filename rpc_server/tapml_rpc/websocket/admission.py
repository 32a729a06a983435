"""Who may open a connection: decided on the HTTP request, before anything of ours is spoken.

A page in a browser may try to connect anywhere, and its user never knows. The Origin header, which
a page cannot forge, says where it came from; programs that are no browsers send none.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from websockets.http11 import Request

from tapml_rpc import wire
from tapml_rpc.websocket.frames import CONTROL_PATH, DATA_PATH, SUBPROTOCOL, TOKEN_PREFIX
from tapml_targets.errors import SetupError

LOOPBACK_ORIGINS: Final = (re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?"),)
_BEARER: Final = "bearer "
_MOST_VALUES: Final = 16


@dataclass(frozen=True)
class Refusal:
    """An HTTP answer that is no upgrade.

    Attributes
    ----------
    status
        Of the answer.
    reason
        Its body: a sentence for whoever asked.
    """

    status: HTTPStatus
    reason: str


class Admission:
    """The rules of one server.

    Parameters
    ----------
    token
        The secret; None for a server on loopback that has none.
    origins
        What a page's Origin may be: texts that must be equal, patterns that must match whole.
    """

    def __init__(self, token: str | None, origins: Sequence[str | re.Pattern[str]]) -> None:
        self._digest = None if token is None else _digest(token)
        self._origins = tuple(origins)

    def check(self, request: Request) -> Refusal | None:
        """Why a request is refused; None where it may be upgraded."""
        if request.path not in (CONTROL_PATH, DATA_PATH):
            return Refusal(
                HTTPStatus.NOT_FOUND,
                f"this is a tapml server; its connections are {CONTROL_PATH} and {DATA_PATH}",
            )
        origins = request.headers.get_all("Origin")
        if origins and not (len(origins) == 1 and self._allows(origins[0])):
            return Refusal(
                HTTPStatus.FORBIDDEN,
                f"pages from {origins[0][:200]} may not use this device; its owner can allow "
                "an origin when starting the server",
            )
        offered = _offered(request)
        if self._digest is not None:
            given = _given_token(request, offered)
            if given is None or not hmac.compare_digest(_digest(given), self._digest):
                return Refusal(
                    HTTPStatus.UNAUTHORIZED,
                    ("no token came" if given is None else "the token is not this server's")
                    + "; send the one it printed at its start as `Authorization: Bearer TOKEN` "
                    f"or as the subprotocol {TOKEN_PREFIX}TOKEN",
                )
        if SUBPROTOCOL not in offered:
            return Refusal(
                HTTPStatus.BAD_REQUEST,
                f"this server speaks the subprotocol {SUBPROTOCOL} (protocol version "
                f"{wire.VERSION}), the request offers {_shown(offered)}; bring both sides to the "
                "same release of tapml",
            )
        return None

    def identity(self) -> str:
        """Whom a connection that was let in speaks for."""
        return "loopback" if self._digest is None else f"token:{self._digest.hex()[:8]}"

    def _allows(self, origin: str) -> bool:
        return any(
            origin == allowed if isinstance(allowed, str) else bool(allowed.fullmatch(origin))
            for allowed in self._origins
        )


def check_secret(host: str, token: str | None) -> None:
    """Refuse to listen where strangers are without a secret.

    Raises
    ------
    SetupError
        If `host` is not on loopback and there is no token.
    """
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and not token:
        raise SetupError(
            f"refusing to listen on {host or 'every address'}: without a token only loopback is "
            "safe. Give the server a token, or listen on 127.0.0.1 and use a tunnel such as "
            "`ssh -L`"
        )


def _digest(token: str) -> bytes:
    # Of equal length whatever came, so that a comparison takes equally long.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _offered(request: Request) -> list[str]:
    values = ",".join(request.headers.get_all("Sec-WebSocket-Protocol")[:_MOST_VALUES])
    offered = [value.strip() for value in values.split(",")]
    # A token is nobody's to print.
    return [value for value in offered if value][:_MOST_VALUES]


def _shown(offered: list[str]) -> str:
    # A token is nobody's to read back.
    return ", ".join(value for value in offered if not value.startswith(TOKEN_PREFIX)) or "none"


def _given_token(request: Request, offered: list[str]) -> str | None:
    for value in request.headers.get_all("Authorization")[:1]:
        if value.lower().startswith(_BEARER):
            return value[len(_BEARER) :].strip()
    for value in offered:
        if value.startswith(TOKEN_PREFIX):
            return value[len(TOKEN_PREFIX) :]
    return None
