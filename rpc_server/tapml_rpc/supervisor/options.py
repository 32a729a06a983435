"""The command line of ``tapml rpc serve``; imports nothing heavy, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from tapml_rpc.memory import usable_bytes
from tapml_rpc.options import (
    byte_count,
    declare_certificate,
    declare_origins,
    declaring,
    options_of,
    port_number,
    positive_seconds,
)
from tapml_targets.platforms import DEFAULT_PLATFORM

MOST_BLOB_BYTES: Final = 4 << 30
_SHARE: Final = 4
BLOB_DISK_BYTES: Final = 32 << 30


@dataclass(frozen=True)
class SupervisorOptions:
    """What ``tapml rpc serve`` takes; the help texts explain it, and empty texts mean none.

    Port 0 takes a free one. `session_bytes` 0 is the default bound. Without `key` it serves on
    loopback only. `clients` and `tokens` default to the user's own files, the certificate of
    ``wss://`` to one that is made here. `origins` are pages that may connect beside those of this
    machine. `blob_bytes` is memory for what is kept by hash; 0 keeps no weights. `through_tracker`
    says that clients cannot reach this machine directly.
    """

    device: str = DEFAULT_PLATFORM
    bind: str = "tcp://127.0.0.1:0"
    data_port: int = 0
    allow_shared_libraries: bool = False
    kernel_deadline: float = 60.0
    silence_seconds: float = 60.0
    session_bytes: int = 0
    limits: str = ""
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
    default = SupervisorOptions()
    declare = declaring(parser, default)
    text = "device to serve, as `tapml devices` lists it (default: %(default)s)"
    declare("--device", "PLATFORM[:INDEX]", text)
    text = "address to listen on; port 0 takes a free one (default: %(default)s)"
    declare("--bind", "ADDRESS", text)
    text = "port for payloads, next to the address's own (default: a free one)"
    declare("--data-port", "PORT", text, type=port_number)
    parser.add_argument(
        "--allow-shared-libraries",
        action="store_true",
        help="let clients load machine code; only for clients you trust with your account",
    )
    text = "a command that runs longer ends its session (default: %(default)g)"
    declare("--kernel-deadline", "SECONDS", text, type=positive_seconds)
    text = "end sessions whose client sends nothing for so long (default: %(default)g)"
    declare("--silence", "SECONDS", text, dest="silence_seconds", type=positive_seconds)
    text = "device memory one session may hold, 512M or 2G (default: the server's bound)"
    declare("--session-bytes", "BYTES", text, type=byte_count)
    text = (
        "open the device with the limits of another: a profile of its platform, or its file; "
        "where its implementation can, it refuses by itself what exceeds them"
    )
    declare("--limits", "PROFILE", text)

    network = parser.add_argument_group("the network")
    declare = declaring(network, default)
    declare("--websocket", "ADDRESS", "listen on ws://HOST:PORT or wss://HOST:PORT as well")
    declare_origins(declare)
    declare("--tracker", "ADDRESS", "register with a tracker: tcp://, ws:// or wss://HOST:PORT")
    declare("--name", "NAME", "the device's name at the tracker (default: this host's)")
    network.add_argument(
        "--through-tracker",
        action="store_true",
        help="clients come through the tracker: this machine cannot be reached from theirs",
    )

    text = "needed if anybody but this user can connect"
    declare = declaring(parser.add_argument_group("secrets", text), default)
    declare("--key", "FILE", "this server's .secret file of `tapml rpc keygen`, for tcp://")
    declare("--clients", "FILE", "keys that are admitted (default: this user's list)")
    declare("--tokens", "FILE", "tokens that are admitted over WebSocket")
    declare_certificate(declare)

    text = "of weights and Libraries by their hash, so that a client sends them once"
    declare = declaring(parser.add_argument_group("cache", text), default)
    most = f"{MOST_BLOB_BYTES >> 30}G"
    text = f"memory for it, 512M or 2G; 0 keeps no weights (default: a quarter, at most {most})"
    declare("--blob-bytes", "BYTES", text, type=byte_count, default=None)
    declare("--blob-folder", "FOLDER", "keep it on disk too, across restarts")
    text = f"most of it there (default: {BLOB_DISK_BYTES >> 30}G)"
    declare("--blob-disk-bytes", "BYTES", text, type=byte_count)


def usual_blob_bytes() -> int:
    """A quarter of the usable memory, at most 4 GiB: a small board keeps less."""
    return min(MOST_BLOB_BYTES, (usable_bytes() or MOST_BLOB_BYTES) // _SHARE)


def options_from(arguments: argparse.Namespace) -> SupervisorOptions:
    """The options that `add_arguments` declared."""
    if arguments.blob_bytes is None:
        arguments.blob_bytes = usual_blob_bytes()
    return options_of(SupervisorOptions, arguments)
