"""Keys for a server and its one client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tapml.cli.secrets import admit, make_pair, write_pair
from tapml_rpc.security.credentials import KEY_VARIABLE, SERVER_KEY_VARIABLE, Credentials


@dataclass(frozen=True)
class Keys:
    """The key files of a server and of its client.

    Attributes
    ----------
    options
        Of ``tapml rpc serve``.
    credentials
        The client's.
    environ
        The same for a client in another process.
    """

    options: tuple[str, ...]
    credentials: Credentials
    environ: dict[str, str]


def make_keys(folder: Path) -> Keys:
    """Make both pairs; their files go into `folder`."""
    own, client = make_pair("device"), make_pair("host")
    allowed = folder / "clients"
    admit(allowed, client.name, client.public)
    own_file, client_file = (write_pair(pair, folder) for pair in (own, client))
    return Keys(
        ("--key", str(own_file), "--clients", str(allowed)),
        Credentials(keys=client, server_key=own.public),
        {KEY_VARIABLE: str(client_file), SERVER_KEY_VARIABLE: own.public},
    )
