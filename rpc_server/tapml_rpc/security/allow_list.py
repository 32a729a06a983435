"""The clients a device admits: a text file of public keys, one a line.

::

    # name   public key                                 anything after a # is a comment
    laptop   Y6jwVt3[hT+6D?Vf#j%4tYpK5cT!7QcKp/0RzC1x   # Ada's
    bench    =XkJ]@4>pcqWYwX7OL:YQW0zzJCxUQ)7oK$gGdPL

A key may hold a ``#``: a comment has a space before its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tapml_rpc.security.keys import KEY_CHARACTERS, check_name, is_key
from tapml_rpc.security.private_files import WatchedFile, config_folder
from tapml_targets.errors import InputError

_LINE: Final = re.compile(r"(?P<name>\S+)[ \t]+(?P<key>\S+)(?:[ \t]+#(?P<comment>.*))?[ \t]*")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\t]")


@dataclass(frozen=True)
class Client:
    """One admitted client: its name for people, its public key, the line's comment."""

    name: str
    public: str
    comment: str = ""


def default_path() -> Path:
    """The default list."""
    return config_folder("clients")


def parse_allow_list(text: str, where: str) -> Mapping[str, Client]:
    """The clients of a list by public key; raises InputError, which names the line."""
    clients: dict[str, Client] = {}
    names: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip(" \t\r")
        if not stripped or stripped.startswith("#"):
            continue
        at = f"{where}, line {number}"
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise InputError(
                f"{at}: expected a name, a public key and perhaps a comment after a #, got "
                f"{_shown(stripped)}"
            )
        name, key = match["name"], match["key"]
        try:
            check_name(name)
        except InputError as error:
            raise InputError(f"{at}: {error}") from None
        if not is_key(key):
            raise InputError(
                f"{at}: expected a public key of {KEY_CHARACTERS} characters after the name, got "
                f"{_shown(key)}"
            )
        if key in clients:
            raise InputError(f"{at}: the key of {clients[key].name!r} again")
        if name in names:
            raise InputError(f"{at}: the name {name!r} again, it is in line {names[name]} already")
        names[name] = number
        clients[key] = Client(name, key, (match["comment"] or "").strip())
    return MappingProxyType(clients)


def _shown(text: str) -> str:
    return repr(_UNPRINTABLE.sub("?", text[:60]))


class AllowList:
    """The clients a server admits, as the file lists them now; nobody without the file."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = WatchedFile(path or default_path(), parse_allow_list)

    @property
    def path(self) -> Path:
        """Where the list is."""
        return self._file.path

    def clients(self) -> tuple[Client, ...]:
        """All of them; raises InputError or SetupError for a file not to be trusted."""
        return tuple(self._file.read().values())

    def find(self, public: str) -> Client | None:
        """The client with this key; None for none. From any thread; see :meth:`clients`."""
        return self._file.read().get(public)
