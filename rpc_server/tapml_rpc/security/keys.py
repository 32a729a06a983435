"""Key pairs for ZeroMQ's CURVE, as two small text files.

A public key is 40 characters of Z85, ZeroMQ's own text form, and identifies a client to a device.
ZeroMQ is imported when a key is made or checked, so that a device that only speaks WebSocket needs
none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tapml_rpc.security.private_files import check_mode, read_checked
from tapml_targets.errors import InputError, SetupError

KEY_CHARACTERS: Final = 40
SECRET_SUFFIX: Final = ".secret"  # noqa: S105 - a file name
PUBLIC_SUFFIX: Final = ".public"
_Z85: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_DIGIT: Final = {character: value for value, character in enumerate(_Z85)}
_GROUP: Final = 5
_FILE_BYTES: Final = 4096
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
PUBLIC_KIND: Final = "tapml public key"
SECRET_KIND: Final = "tapml secret key"  # noqa: S105 - what a file says it is
_FIELDS: Final = {
    PUBLIC_KIND: ("kind", "name", "public"),
    SECRET_KIND: ("kind", "name", "public", "secret"),
}


@dataclass(frozen=True)
class PublicKey:
    """One side's public key: 40 characters, and a name for people."""

    name: str
    public: str


@dataclass(frozen=True)
class KeyPair:
    """One side's keys, 40 characters each, and a name for people. The secret is never shown."""

    name: str
    public: str
    secret: str = field(repr=False)


def check_name(name: str) -> str:
    """Check a name: 1 to 64 letters, digits and ``._@-``; raises InputError."""
    if _NAME.fullmatch(name) is None:
        raise InputError(
            f"a name has 1 to 64 letters, digits or any of ._@- and starts with a letter or a "
            f"digit; got {name[:80]!r}"
        )
    return name


def is_key(text: str) -> bool:
    """Whether a text has the form of a key."""
    if len(text) != KEY_CHARACTERS or any(character not in _DIGIT for character in text):
        return False
    return all(
        _group_value(text[start : start + _GROUP]) < 1 << 32
        for start in range(0, KEY_CHARACTERS, _GROUP)
    )


def encode_key(key: bytes) -> str:
    """The text of 32 bytes; needs ZeroMQ."""
    from zmq.utils import z85

    return z85.encode(key).decode()


def _group_value(group: str) -> int:
    value = 0
    for character in group:
        value = value * 85 + _DIGIT[character]
    return value


def read_pair(path: Path) -> KeyPair:
    """Read a secret file; raises InputError if it is damaged, SetupError if others may read it."""
    text = read_checked(path, secret=False, limit=_FILE_BYTES)
    fields = _parse(text, str(path))
    if fields["kind"] != SECRET_KIND:
        raise InputError(
            f"{path} holds a public key; here the secret one is needed, "
            f"{path.with_suffix(SECRET_SUFFIX).name}"
        )
    check_mode(path, path.stat().st_mode, secret=True)
    pair = KeyPair(fields["name"], fields["public"], fields["secret"])
    if _public_of(pair.secret) != pair.public:
        raise InputError(f"{path} is damaged: its two keys do not belong together")
    return pair


def read_public(key_or_path: str | Path) -> PublicKey:
    """A public key given as its 40 characters or as a file; raises InputError for anything else."""
    given = str(key_or_path)
    if isinstance(key_or_path, str) and is_key(given):
        return PublicKey("", given)
    path = Path(given)
    if isinstance(key_or_path, str) and not path.exists():
        raise InputError(
            f"expected a public key of {KEY_CHARACTERS} characters or the path of a file that "
            f"holds one, got {given[:80]!r}; `tapml rpc keygen` prints it (quote it in a shell)"
        )
    fields = _parse(read_checked(path, secret=False, limit=_FILE_BYTES), str(path))
    if fields["kind"] == SECRET_KIND:
        raise InputError(
            f"{path} holds a secret key, which stays where it was made; give "
            f"{path.with_suffix(PUBLIC_SUFFIX).name}"
        )
    return PublicKey(fields["name"], fields["public"])


def _parse(text: str, where: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line or line.startswith("#"):
            continue
        name, colon, value = line.partition(": ")
        # The text of a line may be a secret: it is never repeated.
        if not colon or name not in _FIELDS[SECRET_KIND]:
            raise InputError(
                f"{where}, line {number}: expected kind, name, public or secret, as in the files "
                "that `tapml rpc keygen` writes"
            )
        if name in fields:
            raise InputError(f"{where}, line {number}: a second {name!r}")
        if name in ("public", "secret") and not is_key(value):
            raise InputError(
                f"{where}, line {number}: expected a key of {KEY_CHARACTERS} characters; "
                "the file is damaged"
            )
        if name == "name":
            check_name(value)
        fields[name] = value
    wanted = _FIELDS.get(fields.get("kind", ""))
    if wanted is None:
        raise InputError(f"{where} is not a key file of `tapml rpc keygen`")
    if set(fields) != set(wanted):
        raise InputError(f"{where} is damaged: a {fields['kind']} has {', '.join(wanted)}")
    return fields


def _public_of(secret: str) -> str:
    try:
        import zmq
    except ImportError as error:
        raise SetupError(f"keys need ZeroMQ ({error}); install it: `pip install pyzmq`") from None
    return zmq.curve_public(secret.encode()).decode()
