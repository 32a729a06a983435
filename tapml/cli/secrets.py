"""What ``tapml rpc keygen`` makes: key pairs, entries of lists of clients, tokens."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tapml_rpc.security.allow_list import Client, parse_allow_list
from tapml_rpc.security.keys import (
    KEY_CHARACTERS,
    PUBLIC_KIND,
    PUBLIC_SUFFIX,
    SECRET_KIND,
    SECRET_SUFFIX,
    KeyPair,
    check_name,
    is_key,
)
from tapml_rpc.security.private_files import (
    FILE_BYTES,
    PUBLIC_MODE,
    SECRET_MODE,
    config_folder,
    folder_lock,
    make_folder,
    read_checked,
    write_private,
)
from tapml_rpc.security.token import digest_of, make_token, parse_tokens
from tapml_targets.errors import InputError, SetupError

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\t]")
_CLIENTS: Final = "# The clients this device admits: a name, a public key, a comment after a #.\n"
_TOKENS: Final = (
    "# Tokens this device takes: a name, SHA-256, once or always, the time of its end.\n"
)


def make_pair(name: str) -> KeyPair:
    """A new key pair; raises SetupError if this machine's ZeroMQ has no CURVE."""
    check_name(name)
    try:
        import zmq

        public, secret = zmq.curve_keypair()
    except (ImportError, OSError) as error:
        raise SetupError(
            f"this machine's ZeroMQ has no CURVE ({error}); install the wheel: `pip install pyzmq`"
        ) from None
    return KeyPair(name, public.decode(), secret.decode())


def write_pair(pair: KeyPair, folder: Path | None = None, *, force: bool = False) -> Path:
    """Write ``NAME.secret`` and ``NAME.public``. Returns the secret one's path.

    Killed in the middle it leaves a secret file that holds both keys, and no public file of another
    pair beside it. The folder, by default the user's own ``keys``, is created for this user only if
    missing. `force` replaces files of this name: those who trust the old key trust nobody then.
    Raises InputError if one of them exists; SetupError if they cannot be written.
    """
    folder = config_folder("keys") if folder is None else folder
    make_folder(folder)
    secret = folder / f"{pair.name}{SECRET_SUFFIX}"
    public = folder / f"{pair.name}{PUBLIC_SUFFIX}"
    if force:
        public.unlink(missing_ok=True)
    for path in (secret, public):
        if not force and path.exists():
            raise InputError(
                f"{path} exists; give another --name, or --force if it is no longer needed"
            )
    write_private(secret, _render(pair, secret=True), mode=SECRET_MODE, replace=force)
    write_private(public, _render(pair, secret=False), mode=PUBLIC_MODE, replace=force)
    return secret


def _render(pair: KeyPair, *, secret: bool) -> str:
    if secret:
        lines = [
            f"# With this file anyone is {pair.name!r} to every device that knows its public key.",
            "# It stays on the machine where it was made.",
            f"kind: {SECRET_KIND}",
        ]
    else:
        lines = ["# This is not a secret: the other side needs it.", f"kind: {PUBLIC_KIND}"]
    lines += [f"name: {pair.name}", f"public: {pair.public}"]
    if secret:
        lines.append(f"secret: {pair.secret}")
    return "\n".join(lines) + "\n"


def admit(path: Path, name: str, public: str, comment: str = "") -> Client:
    """Add a client to a list, made if needed; raises InputError or SetupError."""
    check_name(name)
    if not is_key(public):
        raise InputError(f"expected a public key of {KEY_CHARACTERS} characters, got {public!r}")
    comment = _UNPRINTABLE.sub("?", comment)

    def add(text: str) -> str:
        for known in parse_allow_list(text, str(path)).values():
            if known.public == public:
                raise InputError(f"{path} admits this key already, as {known.name!r}")
            if known.name == name:
                raise InputError(
                    f"{path} has a client {name!r} with another key; give another --name, or take "
                    "its line out first"
                )
        return f"{name} {public}" + (f" # {comment}" if comment else "")

    _append_line(path, _CLIENTS, add, secret=False)
    return Client(name, public, comment)


def add_token(path: Path, name: str, *, once: bool = False, seconds: float | None = None) -> str:
    """A new token, whose hash is added to a list; raises InputError or SetupError."""
    check_name(name)
    token = make_token()
    end = "never" if seconds is None else str(int(time.time() + max(seconds, 1.0)))
    line = f"{name} {digest_of(token)} {'once' if once else 'always'} {end}"

    def add(text: str) -> str:
        if any(known.name == name for known in parse_tokens(text, str(path)).values()):
            raise InputError(
                f"{path} has a token {name!r} already; give another --name, or take its line out"
            )
        return line

    _append_line(path, _TOKENS, add, secret=True)
    return token


def _append_line(path: Path, heading: str, add: Callable[[str], str], *, secret: bool) -> None:
    """Add the line that `add` makes of a list's text, which starts with `heading` if it is new.

    Running servers see it at once. Raises what `add` raises; SetupError if it cannot be written.
    """
    path = path.resolve()
    make_folder(path.parent)
    with folder_lock(path.parent):
        text = read_checked(path, secret=secret, limit=FILE_BYTES) if path.exists() else heading
        line, body = add(text), text.rstrip("\n")
        write_private(path, f"{body}\n{line}\n", replace=True)
