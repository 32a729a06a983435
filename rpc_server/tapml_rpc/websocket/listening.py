"""Safe listening for WebSockets: a numeric address, tokens, a certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tapml_rpc.security.bind import check_bind
from tapml_rpc.security.certificates import given_certificate, host_names, own_certificate
from tapml_rpc.security.tls import server_context
from tapml_rpc.security.token import TokenBook, default_path
from tapml_targets.errors import InputError, TapmlError

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
    if tokens is not None or not _is_loopback(address):
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


def _is_loopback(address: str) -> bool:
    try:
        check_bind(address, secret=False, schemes=_SCHEMES)
    except TapmlError:
        return False
    return True
