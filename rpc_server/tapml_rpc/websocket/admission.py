"""Who may connect over WebSocket: tokens, leases, origins, and the address to listen on."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from websockets.http11 import Request

from tapml_rpc import wire
from tapml_rpc.security.bind import check_bind, is_loopback
from tapml_rpc.security.certificates import given_certificate, host_names, own_certificate
from tapml_rpc.security.standing import LEASE_IDENTITY
from tapml_rpc.security.tls import server_context
from tapml_rpc.security.token import TokenBook, default_path
from tapml_rpc.websocket.frames import CONTROL_PATH, DATA_PATH, SUBPROTOCOL, TOKEN_PREFIX
from tapml_targets.errors import InputError, SetupError, TapmlError

LOOPBACK_ORIGINS: Final = (re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?"),)
_BEARER: Final = "bearer "
_MOST_VALUES: Final = 16


class Guard(Protocol):
    """Checks the tokens of a server, as :class:`tapml_rpc.security.token.TokenBook` does."""

    def check(self, token: str, address: str, *, opens: bool = True) -> str:
        """The identity that belongs to a token; raises SetupError if it is not accepted."""


@dataclass(frozen=True)
class Refusal:
    """An HTTP answer that refuses the upgrade.

    Its body is `reason`, a sentence for the client. `retry_after` is in seconds, 0 for at once.
    """

    status: HTTPStatus
    reason: str
    retry_after: float = 0.0


class Admission:
    """The rules of one server. Called from any thread.

    `guard` checks tokens; None for a server on loopback without any. `origins` are permitted
    Origins of pages: equal texts, or patterns that match completely. The first of the connections'
    `paths` uses up a token that is valid for one session. `own_page` is ``http`` or ``https`` if
    pages are served at the same address, which may connect: clients who must show a token cannot be
    led here by another's page that has taken a name for it.
    """

    def __init__(
        self,
        guard: Guard | None,
        origins: Sequence[str | re.Pattern[str]],
        paths: Sequence[str] = (CONTROL_PATH, DATA_PATH),
        own_page: str = "",
    ) -> None:
        self.guarded = guard is not None
        self._guard = guard
        self._origins = tuple(origins)
        self._paths = tuple(paths)
        self._own_page = own_page if guard is not None else ""

    def check(self, request: Request, address: str) -> Refusal | str:
        """Why a request is refused, or the identity of its sender."""
        return self.refuses(request) or self.admit(request, address)

    def refuses(self, request: Request) -> Refusal | None:
        """Why a request is refused whatever its token is; None if it is not."""
        if request.path not in self._paths:
            return Refusal(
                HTTPStatus.NOT_FOUND,
                f"this is a tapml server; its connections are {' and '.join(self._paths)}; a "
                "device's address is for --device, a tracker's for --tracker",
            )
        origins = request.headers.get_all("Origin")
        if origins and not (len(origins) == 1 and self._allows(origins[0], request)):
            return Refusal(
                HTTPStatus.FORBIDDEN,
                f"pages from {origins[0][:200]} may not use this device; its owner can allow "
                "an origin when starting the server",
            )
        offered = _offered(request)
        if SUBPROTOCOL not in offered:
            return Refusal(
                HTTPStatus.BAD_REQUEST,
                f"this server speaks the subprotocol {SUBPROTOCOL} (protocol version "
                f"{wire.VERSION}), the request offers {_shown(offered)}; bring both sides to the "
                "same release of tapml",
            )
        return None

    def admit(self, request: Request, address: str) -> Refusal | str:
        """Who sends a request from `address`, without port, by its token, which may be used up."""
        if self._guard is None:
            return "loopback"
        given = given_token(request)
        try:
            if given is None:
                raise SetupError("no token came")
            return self._guard.check(given, address, opens=request.path == self._paths[0])
        except TapmlError as error:
            wait = float(getattr(error, "retry_after", 0.0))
            return Refusal(
                HTTPStatus.TOO_MANY_REQUESTS if wait else HTTPStatus.UNAUTHORIZED,
                f"{error}; a token is sent as `Authorization: Bearer TOKEN` or as the "
                f"subprotocol {TOKEN_PREFIX}TOKEN",
                wait,
            )

    def _allows(self, origin: str, request: Request) -> bool:
        hosts = request.headers.get_all("Host")
        if self._own_page and len(hosts) == 1 and origin == f"{self._own_page}://{hosts[0]}":
            return True
        return any(
            origin == allowed if isinstance(allowed, str) else bool(allowed.fullmatch(origin))
            for allowed in self._origins
        )


def _offered(request: Request) -> list[str]:
    values = ",".join(request.headers.get_all("Sec-WebSocket-Protocol")[:_MOST_VALUES])
    offered = [value.strip() for value in values.split(",")]
    # A token must not be printed.
    return [value for value in offered if value][:_MOST_VALUES]


def _shown(offered: list[str]) -> str:
    # A token must not be read back.
    return ", ".join(value for value in offered if not value.startswith(TOKEN_PREFIX)) or "none"


def given_token(request: Request) -> str | None:
    """The token in a request's headers; None for none."""
    for value in request.headers.get_all("Authorization")[:1]:
        if value.lower().startswith(_BEARER):
            return value[len(_BEARER) :].strip()
    for value in _offered(request):
        if value.startswith(TOKEN_PREFIX):
            return value[len(TOKEN_PREFIX) :]
    return None


class LeaseGuard:
    """Accepts the tokens of leases, whose `holder` is their identity, and those of a guard."""

    def __init__(self, holder: Callable[[str], str], others: Guard) -> None:
        self._holder = holder
        self._others = others

    def check(self, token: str, address: str, *, opens: bool = True) -> str:
        """The identity that belongs to a token; raises SetupError if it is not accepted."""
        holder = self._holder(token)
        if holder:
            return LEASE_IDENTITY + holder
        return self._others.check(token, address, opens=opens)


_SCHEMES: Final = ("ws", "wss")


@dataclass(frozen=True)
class Listening:
    """Where to listen, and who may come.

    `host` and `port` are numeric. `tokens` are who is admitted, None for everybody on loopback
    only; `context` is for ``wss``. `announced` is what the server's line on standard output says of
    its secrets: ``token``, ``fingerprint``.
    """

    host: str
    port: int
    tokens: TokenBook | None
    context: ssl.SSLContext | None
    announced: dict[str, str] = field(repr=False)


def prepare(
    address: str, *, tokens: Path | None = None, certificate: str = "", certificate_key: str = ""
) -> Listening:
    """Prepare to listen at ``ws://HOST:PORT`` or ``wss://HOST:PORT``; port 0 takes a free one.

    `tokens` is a file with admitted tokens, None for the user's own. Off loopback, and if a file is
    named, a token is needed, and one more is made for the readers of the announcement. Without a
    certificate for ``wss`` one is made here. Raises InputError if the address is malformed, or a
    file cannot be used; SetupError if anyone could connect, or a secret would travel unencrypted.
    """
    host, port = check_bind(address, secret=True, schemes=_SCHEMES)
    announced: dict[str, str] = {}
    book = None
    if tokens is not None or not is_loopback(host):
        if tokens is not None and not tokens.exists():
            raise InputError(
                f"there is no file {tokens}: `tapml rpc keygen --token --list {tokens}` makes one"
            )
        book = TokenBook(tokens or (default_path() if default_path().exists() else None))
        # No token was handed out before: the readers of the announcement may connect.
        announced["token"] = book.issue("announced")
    context = None
    secure = urlsplit(address).scheme == "wss"
    if not secure and (certificate or certificate_key):
        raise InputError(
            f"a certificate is for wss://, got {address}: listen at wss:// or leave it out"
        )
    if secure:
        if bool(certificate) != bool(certificate_key):
            raise InputError("--certificate and --certificate-key go together")
        shown = (
            given_certificate(Path(certificate), Path(certificate_key))
            if certificate
            else own_certificate(host_names(host))
        )
        announced["fingerprint"] = shown.fingerprint
        context = server_context(shown)
    return Listening(host, port, book, context, announced)
