"""A client's secrets, and whom it trusts; ZeroMQ is imported only where keys are used."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tapml_rpc.security.certificates import parse_fingerprint
from tapml_rpc.security.keys import KeyPair, is_key, read_pair, read_public
from tapml_rpc.security.private_files import read_checked
from tapml_rpc.security.tls import client_context
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml_rpc.security.curve import ClientCurve

KEY_VARIABLE: Final = "TAPML_RPC_KEY"
SERVER_KEY_VARIABLE: Final = "TAPML_RPC_SERVER_KEY"
TOKEN_VARIABLE: Final = "TAPML_RPC_TOKEN"  # noqa: S105 - a variable's name
CA_VARIABLE: Final = "TAPML_RPC_CA"
FINGERPRINT_VARIABLE: Final = "TAPML_RPC_FINGERPRINT"
_TOKEN_FILE_BYTES: Final = 4096
# What an HTTP header and a subprotocol's name can contain.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]{1,256}")


@dataclass(frozen=True)
class Credentials:
    """Secrets and trust of a client. Printing it shows none of them.

    Attributes
    ----------
    keys
        This client's key pair, for ZeroMQ.
    server_key
        The server's public key, for ZeroMQ.
    token
        What a WebSocket server asks for.
    ca_file
        Whom to trust on ``wss://``: a file of certificates; None for the system's authorities.
    fingerprint
        The one certificate to trust on ``wss://``.

    Raises
    ------
    InputError
        If a half is missing, or a value is malformed.
    """

    keys: KeyPair | None = field(default=None, repr=False)
    server_key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = field(default=None, repr=False)
    fingerprint: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.keys is None) != (self.server_key is None):
            missing = (
                f"this client's own ({KEY_VARIABLE}, a .secret file)"
                if self.keys is None
                else f"the server's public one ({SERVER_KEY_VARIABLE})"
            )
            raise InputError(f"an encrypted connection takes two keys; {missing} is missing")
        if self.server_key is not None and not is_key(self.server_key):
            raise InputError(
                "the server's public key is not a key: expected the 40 characters that "
                "`tapml rpc keygen` printed on the server"
            )
        if self.token is not None and _TOKEN.fullmatch(self.token) is None:
            raise InputError(
                "the token is not a token: expected 1 to 256 letters, digits, '.', '_', '~' or '-'"
            )
        if self.fingerprint is not None:
            parse_fingerprint(self.fingerprint)
            if self.ca_file is not None:
                raise InputError("trust either a file of authorities or a fingerprint, not both")

    @classmethod
    def from_files(
        cls,
        *,
        key: Path | str | None = None,
        server_key: Path | str | None = None,
        token: Path | str | None = None,
        ca_file: Path | str | None = None,
        fingerprint: str | None = None,
    ) -> Credentials:
        """Read what is given: `key` is the client's ``.secret`` file.

        `server_key` is the server's public key as text, or its ``.public`` file; `token` a
        file with the token in it, which only its owner may read. Raises InputError if a
        file is missing or damaged, or a half is missing; SetupError if others may read a
        secret.
        """
        text = None
        if token is not None:
            text = read_checked(Path(token), secret=True, limit=_TOKEN_FILE_BYTES).strip()
        return cls(
            keys=None if key is None else read_pair(Path(key).expanduser()),
            server_key=None if server_key is None else read_public(server_key).public,
            token=text,
            ca_file=None if ca_file is None else Path(ca_file).expanduser(),
            fingerprint=fingerprint,
        )

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, *, lent_key: str | None = None
    ) -> Credentials | None:
        """The credentials in the environment; None if there are none.

        ``TAPML_RPC_KEY`` is the path of a ``.secret`` file, ``TAPML_RPC_SERVER_KEY`` a
        public key or the path of one, ``TAPML_RPC_TOKEN`` a token, ``TAPML_RPC_CA`` the
        path of certificates, ``TAPML_RPC_FINGERPRINT`` the fingerprint of one certificate.
        `lent_key` is for a device that a tracker lent: its public key from the tracker,
        empty if it has none. ``TAPML_RPC_SERVER_KEY`` is not needed then; without both,
        ``TAPML_RPC_KEY`` is meant for the tracker. Raises as :meth:`from_files`.
        """
        key, server_key, token, ca_file, fingerprint = (
            environ.get(name) or None
            for name in (
                KEY_VARIABLE,
                SERVER_KEY_VARIABLE,
                TOKEN_VARIABLE,
                CA_VARIABLE,
                FINGERPRINT_VARIABLE,
            )
        )
        if lent_key is not None and key and not server_key:
            key, server_key = (key, lent_key) if lent_key else (None, None)
        if not any((key, server_key, token, ca_file, fingerprint)):
            return None
        files = cls.from_files(
            key=key, server_key=server_key, ca_file=ca_file, fingerprint=fingerprint
        )
        return replace(files, token=token)

    def curve(self) -> ClientCurve | None:
        """For ZeroMQ: the keys; None if there are none."""
        from tapml_rpc.security.curve import ClientCurve

        if self.keys is None or self.server_key is None:
            return None
        return ClientCurve(self.keys, self.server_key)

    def ssl_context(self) -> ssl.SSLContext:
        """For ``wss://``: whom to trust."""
        return client_context(ca_file=self.ca_file, fingerprint=self.fingerprint)
