"""What ``tapml rpc serve`` takes; imports nothing heavy, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, Final

from tapml_rpc import options as server_options
from tapml_rpc.options import ServerOptions, byte_count
from tapml_rpc.supervisor.memory import usable_bytes

MOST_BLOB_BYTES: Final = 4 << 30
_SHARE: Final = 4
BLOB_DISK_BYTES: Final = 32 << 30


@dataclass(frozen=True)
class SupervisorOptions(ServerOptions):
    """What ``tapml rpc serve`` takes beside what every server does.

    Attributes
    ----------
    websocket
        ``ws://host:port`` or ``wss://host:port`` to listen on as well; empty for none.
    key
        The server's ``.secret`` file of ``tapml rpc keygen``; empty for none, on loopback alone.
    clients
        File with the keys that are admitted; empty for the user's own.
    tokens
        File with the tokens that are admitted over WebSocket; empty for the user's own.
    certificate, certificate_key
        For ``wss://``; empty for one that is made here.
    origins
        Pages that may connect, beside those of this machine.
    blob_bytes
        Memory for what is kept by hash; 0 keeps nothing.
    blob_folder
        Folder for it; empty for none.
    blob_disk_bytes
        Most bytes in that folder.
    tracker
        Tracker to register with; empty for none.
    name
        The device's name there.
    through_tracker
        Whether clients come through the tracker, because they cannot reach this machine.
    """

    websocket: str = ""
    key: str = ""
    clients: str = ""
    tokens: str = ""
    certificate: str = ""
    certificate_key: str = ""
    origins: tuple[str, ...] = ()
    blob_bytes: int = MOST_BLOB_BYTES
    blob_folder: str = ""
    blob_disk_bytes: int = BLOB_DISK_BYTES
    tracker: str = ""
    name: str = ""
    through_tracker: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options on a parser."""
    server_options.add_arguments(parser)
    default = SupervisorOptions()

    def add(group: Any, name: str, metavar: str, text: str, **more: Any) -> None:
        destination = name.removeprefix("--").replace("-", "_")
        group.add_argument(
            name, default=getattr(default, destination), metavar=metavar, help=text, **more
        )

    network = parser.add_argument_group("the network")
    add(network, "--websocket", "ADDRESS", "listen on ws://HOST:PORT or wss://HOST:PORT as well")
    network.add_argument(
        "--origin",
        dest="origins",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages from https://HOST[:PORT] connect, beside those of this machine",
    )
    add(
        network, "--tracker", "ADDRESS", "register with a tracker: tcp://, ws:// or wss://HOST:PORT"
    )
    add(network, "--name", "NAME", "the device's name at the tracker (default: this host's)")
    network.add_argument(
        "--through-tracker",
        action="store_true",
        help="clients come through the tracker: this machine cannot be reached from theirs",
    )

    secrets = parser.add_argument_group(
        "secrets", "needed wherever others than this user can reach"
    )
    add(secrets, "--key", "FILE", "this server's .secret file of `tapml rpc keygen`, for tcp://")
    add(secrets, "--clients", "FILE", "keys that are admitted (default: this user's list)")
    add(secrets, "--tokens", "FILE", "tokens that are admitted over WebSocket")
    add(secrets, "--certificate", "FILE", "for wss:// (default: one that is made here)")
    add(secrets, "--certificate-key", "FILE", "its private key")

    blobs = parser.add_argument_group("what is kept by hash", "weights and Libraries, per client")
    blobs.add_argument(
        "--blob-bytes",
        type=byte_count,
        metavar="BYTES",
        help="memory for it, 512M or 2G; 0 for none (default: a quarter of what there is, at most "
        f"{MOST_BLOB_BYTES >> 30}G)",
    )
    add(blobs, "--blob-folder", "FOLDER", "keep it on disk too, across restarts")
    text = f"most of it there (default: {BLOB_DISK_BYTES >> 30}G)"
    add(blobs, "--blob-disk-bytes", "BYTES", text, type=byte_count)


def usual_blob_bytes() -> int:
    """A quarter of the memory there is for it, 4 GiB at most: a small board keeps less."""
    return min(MOST_BLOB_BYTES, (usable_bytes() or MOST_BLOB_BYTES) // _SHARE)


def options_from(arguments: argparse.Namespace) -> SupervisorOptions:
    """The options that `add_arguments` declared."""
    given = vars(server_options.options_from(arguments))
    own = {
        name: getattr(arguments, name)
        for name in SupervisorOptions.__dataclass_fields__
        if name not in given
    }
    if own["blob_bytes"] is None:
        own["blob_bytes"] = usual_blob_bytes()
    return SupervisorOptions(**given, **{**own, "origins": tuple(own["origins"])})
