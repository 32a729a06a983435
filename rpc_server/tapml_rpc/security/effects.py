"""Options about who may come in, refused where they would change nothing.

Whoever names a list of clients and no key believes the door is locked, and on loopback it is open.
"""

from __future__ import annotations

from typing import Final, Protocol

from tapml_targets.errors import InputError

_FOR_KEYS: Final = ("clients",)
_FOR_WEBSOCKET: Final = ("tokens", "certificate", "certificate_key", "origins")


class EntranceOptions(Protocol):
    """What a server's and a tracker's options have in common."""

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
    """See that what is said about keys and WebSockets has keys and WebSockets to be about.

    Raises
    ------
    InputError
        If it has not; the message names what to add.
    """
    without_key = [] if options.key else _given(options, _FOR_KEYS)
    if without_key:
        raise InputError(
            f"{' and '.join(without_key)} without --key: without this machine's own key nobody is "
            "asked for one. `tapml rpc keygen` makes it, --key FILE.secret names it"
        )
    browsers = getattr(options, "browsers", ())
    without_socket = [] if options.websocket or browsers else _given(options, _FOR_WEBSOCKET)
    if without_socket:
        raise InputError(
            f"{' and '.join(without_socket)} without --websocket: nobody comes that way. Give "
            "--websocket wss://HOST:PORT, or ws://127.0.0.1:PORT, as well"
        )


def _given(options: EntranceOptions, names: tuple[str, ...]) -> list[str]:
    return [
        "--origin" if name == "origins" else f"--{name.replace('_', '-')}"
        for name in names
        if getattr(options, name)
    ]
