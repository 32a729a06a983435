"""Tokens for WebSocket: shown once, kept as hashes, compared in constant time.

A token is 32 random bytes as text. It cannot be guessed, so a right token is accepted whatever
other clients at the same address did (everybody behind a tunnel has one address); the limit on
failures saves work and log lines.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tapml_rpc.security.keys import check_name
from tapml_rpc.security.private_files import (
    FILE_BYTES,
    WatchedFile,
    config_folder,
    folder_lock,
    read_checked,
    write_private,
)
from tapml_rpc.security.standing import FailureLimit
from tapml_targets.errors import InputError, SetupError

TOKEN_BYTES: Final = 32
TOKEN_CHARACTERS: Final = 43
_SPENT: Final = 256
_IDENTITY_DIGITS: Final = 8
_LINE: Final = re.compile(r"(\S+) ([0-9a-f]{64}) (once|always) (never|[1-9][0-9]{0,11})")


class TokenRefusedError(SetupError):
    """A token that is not accepted; the address is answered again in `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class KnownToken:
    """What is kept of a token.

    `digest` is the SHA-256 of its text, in hex; `once`: it opens only one session; `expires` is in
    seconds since 1970, 0 for never.
    """

    name: str
    digest: str
    once: bool = False
    expires: int = 0


def make_token() -> str:
    """A new token: 43 characters that need no quoting anywhere."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> str:
    """The SHA-256 of a token in hex."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def identity_of(digest: str) -> str:
    """The identity of the client with the token of this digest."""
    return f"token:{digest[:_IDENTITY_DIGITS]}"


def default_path() -> Path:
    """The default list of tokens."""
    return config_folder("tokens")


def parse_tokens(text: str, where: str) -> Mapping[str, KnownToken]:
    """The tokens of a list by digest; raises InputError, which names a line, not its text."""
    known: dict[str, KnownToken] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise InputError(
                f"{where}, line {number}: expected a name, 64 hex digits, once or always, and "
                "never or a number of seconds since 1970"
            )
        name, digest, times, end = match.groups()
        check_name(name)
        known[digest] = KnownToken(name, digest, times == "once", 0 if end == "never" else int(end))
    return MappingProxyType(known)


class TokenBook:
    """The tokens a server takes: its own, and those of a file, read when it changes."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        limit: FailureLimit | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = None if path is None else WatchedFile(path, parse_tokens, secret=True)
        self._own: dict[str, KnownToken] = {}
        self._spent: OrderedDict[str, None] = OrderedDict()
        # Clients with a token of the list that remains valid: it may be removed.
        self._staying: set[str] = set()
        self._limit = limit or FailureLimit()
        self._clock = clock
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"TokenBook({None if self._file is None else str(self._file.path)!r})"

    def issue(self, name: str, *, once: bool = False, seconds: float | None = None) -> str:
        """Make a token that only this process knows.

        `once`: it opens one session only. It expires after `seconds`; None for never.
        """
        token = make_token()
        expires = 0 if seconds is None else int(self._clock() + max(seconds, 1.0))
        known = KnownToken(check_name(name), digest_of(token), once, expires)
        with self._lock:
            self._own[known.digest] = known
        return token

    def check(self, token: str, address: str, *, opens: bool = True) -> str:
        """The identity that belongs to a token; `address` is the client's, without the port.

        `opens`: it opens a session, which uses up a token for one. True for a control connection,
        False for the data connection that follows it. Raises TokenRefusedError if it is not
        accepted; InputError or SetupError if the list cannot be read, and nobody is admitted then.
        """
        digest = digest_of(token[: 2 * TOKEN_CHARACTERS])
        with self._lock:
            known = self._find(digest, opens)
            if known is None:
                waiting = self._limit.note(address)
                raise TokenRefusedError(
                    "this server does not take that token: it is wrong, used up or too old. "
                    "`tapml rpc serve` prints one, `tapml rpc keygen --token` makes one that stays",
                    waiting,
                )
            listed = known.once and opens and self._spend(known)
            if not known.once and known.name and known.digest not in self._own:
                self._staying.add(identity_of(known.digest))
        if listed and self._file is not None:
            # Before the session opens: a restarted server must not take it again. A holder of the
            # list's lock may keep this client waiting, and no other: here it is spent already.
            _remove(self._file.path, known.digest)
        return identity_of(known.digest)

    def revoked(self, identity: str) -> str:
        """Why a client with a token may not stay; empty if it may.

        A token for one session is used up by it, and an expired one opens no other: neither ends
        the session. Raises InputError or SetupError if the list cannot be read.
        """
        with self._lock:
            if self._file is None or identity not in self._staying:
                return ""
            listed = self._file.read()
        if any(identity_of(digest) == identity for digest in listed):
            return ""
        return "its token was taken out of the device's list"

    def _find(self, digest: str, opens: bool) -> KnownToken | None:
        """Every token is compared, whichever matches."""
        listed = [] if self._file is None else list(self._file.read().values())
        found = None
        for known in [*self._own.values(), *listed]:
            if hmac.compare_digest(known.digest, digest):
                found = known
        spent = False
        for used in self._spent:
            spent |= hmac.compare_digest(used, digest)
        if spent:
            return None if opens else KnownToken("", digest)
        if found is not None and found.expires and self._clock() >= found.expires:
            return None
        return found

    def _spend(self, known: KnownToken) -> bool:
        """Accept a token no more; whether it must be removed from the list as well."""
        self._spent[known.digest] = None
        if len(self._spent) > _SPENT:
            self._spent.popitem(last=False)
        return self._own.pop(known.digest, None) is None


def _remove(path: Path, digest: str) -> None:
    path = path.resolve()
    with folder_lock(path.parent):
        lines = read_checked(path, secret=True, limit=FILE_BYTES).split("\n")
        write_private(path, "\n".join(line for line in lines if digest not in line), replace=True)
