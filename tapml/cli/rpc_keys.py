"""``tapml rpc keygen``: keys for ZeroMQ, tokens for WebSocket, and who is admitted."""

from __future__ import annotations

import argparse
import getpass
import re
import socket
from pathlib import Path
from shlex import quote
from typing import Any, Final

from tapml_targets.errors import InputError

_MOST_HOURS: Final = 366 * 24


def add_keygen_parser(actions: Any) -> None:
    """Register the action below ``tapml rpc``."""
    parser: argparse.ArgumentParser = actions.add_parser(
        "keygen",
        help="make keys, admit a client, make a token",
        description=(
            "Make this machine's keys, or admit a client on the device. Both ends have a pair:\n"
            "the secret half stays where it was made, the public half goes to the other side.\n"
            "Nothing secret is printed, but for a token, which is printed once."
        ),
        epilog=(
            "examples:\n"
            "  tapml rpc keygen                             this machine's keys\n"
            "  tapml rpc keygen --authorize laptop.public   on the device: admit that client\n"
            "  tapml rpc keygen --authorize='rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7' --name ada\n"
            "  tapml rpc keygen --token --name phone        a token for WebSocket clients\n"
            "  tapml rpc keygen --token --once --hours 2    a guest's: one session, soon\n"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="of the keys, the client or the token (default: this machine's, or the key file's)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where keys lie (default: ~/.config/tapml/keys)",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace keys of this name; the old ones are lost"
    )
    does = parser.add_mutually_exclusive_group()
    does.add_argument(
        "--authorize",
        metavar="KEY",
        help="admit the client with this public key, given as text or as its file",
    )
    does.add_argument(
        "--token", action="store_true", help="make a token that WebSocket clients show"
    )
    parser.add_argument("--once", action="store_true", help="the token opens one session alone")
    parser.add_argument(
        "--hours", type=_hours, metavar="N", help="the token is taken for so long (default: always)"
    )
    parser.add_argument(
        "--list",
        dest="listed",
        type=Path,
        metavar="FILE",
        help="list to add to (default: ~/.config/tapml/clients, or tokens with --token)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make keys, admit a client or make a token."""
    if arguments.listed is not None and not (arguments.authorize or arguments.token):
        raise InputError("--list goes with --authorize or --token")
    if arguments.force and (arguments.authorize or arguments.token):
        raise InputError("--force is for keys; a list keeps what is in it")
    if not arguments.token and (arguments.once or arguments.hours):
        raise InputError("--once and --hours are for tokens: give --token as well")
    if arguments.authorize:
        _authorize(arguments.authorize, arguments.name, arguments.listed)
    elif arguments.token:
        _make_token(arguments)
    else:
        _make_keys(arguments.name or _machine_name(), arguments.folder, arguments.force)
    return 0


def _make_keys(name: str, folder: Path | None, force: bool) -> None:
    from tapml_rpc.security.keys import PUBLIC_SUFFIX, make_pair, write_pair

    pair = make_pair(name)
    secret = write_pair(pair, folder, force=force)
    public = quote(pair.public)
    print(f"secret key: {secret} (stays here)")
    print(f"public key: {pair.public} (also in {secret.with_suffix(PUBLIC_SUFFIX)})")
    print()
    print("On a device, to admit this machine as a client:")
    print(f"  tapml rpc keygen --authorize={public} --name {pair.name}")
    print("From a client, to connect to this machine as a device:")
    print(f"  export TAPML_RPC_SERVER_KEY={public} TAPML_RPC_KEY=FILE.secret")


def _authorize(given: str, name: str | None, listed: Path | None) -> None:
    from tapml_rpc.security.allow_list import admit, default_path
    from tapml_rpc.security.keys import read_public

    key = read_public(given)
    name = name or key.name
    if not name:
        raise InputError("a key given as text has no name; add --name NAME")
    path = listed or default_path()
    admit(path, name, key.public)
    print(f"{path} admits {name!r} from now on; a running server sees it by itself")
    print("to end that, take its line out of the file")


def _make_token(arguments: argparse.Namespace) -> None:
    from tapml_rpc.security.token import add_token, default_path

    path, name = arguments.listed or default_path(), arguments.name or "client"
    seconds = arguments.hours and arguments.hours * 3600
    token = add_token(path, name, once=arguments.once, seconds=seconds)
    lasts = "for one session" if arguments.once else ""
    lasts += f" for {arguments.hours:g} h" if arguments.hours else ""
    print(f"token {name!r}{lasts and ' '}{lasts.strip()}, shown this once ({path} has its hash):")
    print(f"  export TAPML_RPC_TOKEN={token}")


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= _MOST_HOURS:
        raise argparse.ArgumentTypeError(f"expected a number of hours up to a year, got {text!r}")
    return hours


def _machine_name() -> str:
    """``ada@laptop``, for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "user"
    name = re.sub(r"[^A-Za-z0-9._@-]", "-", f"{user}@{socket.gethostname()}")
    return name.lstrip("._@-")[:64] or "client"
