"""Rejects security options that would have no effect.

A list of clients without a key looks like a locked door, and on loopback the server is open.
"""

from __future__ import annotations

from typing import Final, Protocol

from tapml_targets.errors import InputError

_FOR_KEYS: Final = ("clients",)
_FOR_WEBSOCKET: Final = ("tokens", "certificate", "certificate_key", "origins")


class EntranceOptions(Protocol):
    """The common options of a server and a tracker."""

    @property
    def key(self) -> str:
        """The ``.secret`` file; empty for none."""

    @property
    def clients(self) -> str:
        """File with the keys that are admitted; empty for the user's own."""

    @property
    def websocket(self) -> str:
        """Address to listen on; empty for none."""


def check_effects(options: EntranceOptions) -> None:
    """Check that options about keys and WebSockets come with keys and WebSockets.

    Raises InputError, which names what to add.
    """
    without_key = [] if options.key else _given(options, _FOR_KEYS)
    if without_key:
        raise InputError(
            f"{' and '.join(without_key)} without --key: without this machine's own key "
            "clients are not asked for theirs. `tapml rpc keygen` makes one, --key FILE.secret "
            "names it"
        )
    browsers = getattr(options, "browsers", ())
    without_socket = [] if options.websocket or browsers else _given(options, _FOR_WEBSOCKET)
    if without_socket:
        raise InputError(
            f"{' and '.join(without_socket)} without --websocket: no WebSocket is served. Give "
            "--websocket wss://HOST:PORT, or ws://127.0.0.1:PORT, as well"
        )


def _given(options: EntranceOptions, names: tuple[str, ...]) -> list[str]:
    return [
        "--origin" if name == "origins" else f"--{name.replace('_', '-')}"
        for name in names
        if getattr(options, name)
    ]
