"""``tapml rpc``: serve a device to other processes, lend devices, make keys."""

from __future__ import annotations

import argparse
import getpass
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.announcing import announce, how_to_open, how_to_reach, page_url
from tapml.cli.model_arguments import number
from tapml.cli.server_options import (
    add_serve_options,
    add_tracker_options,
    serve_options,
    tracker_options,
)
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml_rpc.tracker.process import Look

_MOST_HOURS: Final = 366 * 24


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "rpc",
        help="serve devices, lend them, make keys",
        description="Serve devices to other machines, lend them, and make the keys for that.",
        epilog=(
            "examples:\n"
            "  tapml rpc serve --bind tcp://127.0.0.1:9190    serve the best OpenCL device here\n"
            "  tapml devices tcp://127.0.0.1:9190             list what that server offers\n"
            "  tapml rpc tracker                              lend several devices by name\n"
            "  tapml rpc keygen --help                        keys, for servers off loopback\n"
        ),
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    serve: argparse.ArgumentParser = actions.add_parser(
        "serve",
        help="serve one device of this machine",
        description=(
            "Serve one device of this machine until Ctrl-C. The address is printed as one line of\n"
            "JSON. The base install and the platform's package are enough: no compiler, no PyTorch."
        ),
        epilog=(
            "examples:\n"
            "  tapml rpc serve                                     the best OpenCL device\n"
            "  tapml rpc serve --device opencl:1 --bind tcp://127.0.0.1:9190\n"
            "  ssh -L 9190:localhost:9190 -L 9191:localhost:9191 board \\\n"
            "      tapml rpc serve --bind tcp://127.0.0.1:9190 --data-port 9191\n"
            "  tapml rpc serve --bind tcp://0.0.0.0:9190 --key ~/.config/tapml/keys/board.secret\n"
            "  tapml rpc serve --websocket wss://0.0.0.0:9443      prints its token\n"
            "  tapml rpc serve --tracker tcp://127.0.0.1:9190 --name pixel\n"
            "\nOff loopback a server needs a secret: `tapml rpc keygen --help`.\n"
        ),
    )
    add_serve_options(serve)
    serve.set_defaults(run=_serve)
    _add_keygen_parser(actions)
    _add_tracker_parser(actions)


def _serve(arguments: argparse.Namespace) -> int:
    """Serve until stopped."""
    from tapml_rpc.supervisor.serve import serve

    return serve(serve_options(arguments), lambda line: announce(line, how_to_reach))


def _add_tracker_parser(actions: Any) -> None:
    parser: argparse.ArgumentParser = actions.add_parser(
        "tracker",
        help="lend devices by name, kind or feature",
        description=(
            "Keep a list of devices and lend each to one at a time, until Ctrl-C. A lease\n"
            "ends with its holder's process. Devices that accept no connections are reached\n"
            "through the tracker's relay. The address is printed as one line of JSON."
        ),
        epilog=(
            "examples:\n"
            "  tapml rpc tracker                                 for this machine alone\n"
            "  tapml rpc tracker --bind 'tcp://*:9190' --key ~/.config/tapml/keys/lab.secret\n"
            "  tapml rpc tracker --websocket 'wss://*:9443'      for boards and browsers, too\n"
            "  tapml rpc tracker --browser                       starts a browser, as a device\n"
            "  tapml devices --tracker tcp://127.0.0.1:9190      its devices and their holders\n"
        ),
    )
    add_tracker_options(parser)
    parser.set_defaults(run=_track)


def _track(arguments: argparse.Namespace) -> int:
    """Track devices until stopped."""
    from tapml.devices.browser_process import kept_browsers, named_browsers
    from tapml_rpc.tracker.process import run_tracker

    browsers = named_browsers(arguments.browsers)
    if browsers and arguments.websocket.startswith("wss:"):
        raise InputError(
            "--browser opens the page of this machine, which needs no certificate: give "
            "--websocket ws://127.0.0.1:PORT, or leave it out; wss:// is for another tracker"
        )
    if browsers:
        arguments.websocket = arguments.websocket or "ws://127.0.0.1:0"

    @contextmanager
    def announced(line: dict[str, Any]) -> Iterator[Look | None]:
        announce(line | ({"browsers": list(browsers)} if browsers else {}), how_to_open)
        if not browsers:
            yield None
            return
        page = page_url(line, "127.0.0.1")
        with kept_browsers(page, browsers, arguments.browser_patience) as look:
            yield look

    return run_tracker(tracker_options(arguments), announced)


def _add_keygen_parser(actions: Any) -> None:
    parser: argparse.ArgumentParser = actions.add_parser(
        "keygen",
        help="make keys, admit a client, make a token",
        description=(
            "Make this machine's keys, or admit a client on the device. Each side has a key pair:\n"
            "the secret key stays on its machine, the public key goes to the other side. Nothing\n"
            "secret is printed, except a token, which is printed once."
        ),
        epilog=(
            "examples:\n"
            "  tapml rpc keygen                             this machine's keys\n"
            "  tapml rpc keygen --authorize laptop.public   on the device: admit that client\n"
            "  tapml rpc keygen --authorize='rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7' --name ada\n"
            "  tapml rpc keygen --token --name phone        a token for WebSocket clients\n"
            "  tapml rpc keygen --token --once --hours 2    for a guest: one session\n"
        ),
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
        help="folder of keys (default: ~/.config/tapml/keys)",
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
    does.add_argument("--token", action="store_true", help="make a token for WebSocket clients")
    parser.add_argument("--once", action="store_true", help="the token opens one session only")
    parser.add_argument(
        "--hours",
        type=number("a number of hours up to a year", float, 1e-3, _MOST_HOURS),
        metavar="N",
        help="the token expires after N hours (default: never)",
    )
    parser.add_argument(
        "--list",
        dest="listed",
        type=Path,
        metavar="FILE",
        help="list to add to (default: ~/.config/tapml/clients, or tokens with --token)",
    )
    parser.set_defaults(run=_keygen)


def _keygen(arguments: argparse.Namespace) -> int:
    """Make keys, admit a client or make a token."""
    if arguments.listed is not None and not (arguments.authorize or arguments.token):
        raise InputError("--list goes with --authorize or --token")
    if arguments.force and (arguments.authorize or arguments.token):
        raise InputError("--force is for keys; entries of a list stay")
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
    from tapml.cli.secrets import make_pair, write_pair
    from tapml_rpc.security.keys import PUBLIC_SUFFIX

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
    from tapml.cli.secrets import admit
    from tapml_rpc.security.allow_list import default_path
    from tapml_rpc.security.keys import read_public

    key = read_public(given)
    name = name or key.name
    if not name:
        raise InputError("a key given as text has no name; add --name NAME")
    path = listed or default_path()
    admit(path, name, key.public)
    print(f"{path} admits {name!r} from now on; running servers notice it")
    print("to revoke it, remove its line from the file")


def _make_token(arguments: argparse.Namespace) -> None:
    from tapml.cli.secrets import add_token
    from tapml_rpc.security.token import default_path

    path, name = arguments.listed or default_path(), arguments.name or "client"
    seconds = arguments.hours and arguments.hours * 3600
    token = add_token(path, name, once=arguments.once, seconds=seconds)
    lasts = "for one session" if arguments.once else ""
    lasts += f" for {arguments.hours:g} h" if arguments.hours else ""
    print(f"token {name!r}{lasts and ' '}{lasts.strip()}, shown this once ({path} has its hash):")
    print(f"  export TAPML_RPC_TOKEN={token}")


def _machine_name() -> str:
    """``ada@laptop``, for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "user"
    name = re.sub(r"[^A-Za-z0-9._@-]", "-", f"{user}@{socket.gethostname()}")
    return name.lstrip("._@-")[:64] or "client"
