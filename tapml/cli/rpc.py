"""``tapml rpc``: serve a device to other processes."""

from __future__ import annotations

import argparse
from typing import Any

from tapml.cli.rpc_keys import add_keygen_parser
from tapml.cli.rpc_tracker import add_tracker_parser
from tapml_rpc.supervisor.options import add_arguments, options_from


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "rpc",
        help="serve devices, lend them, make keys",
        description="The runtime between a host and its devices.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    serve: argparse.ArgumentParser = actions.add_parser(
        "serve",
        help="serve one device of this machine",
        description=(
            "Serve one device of this machine until Ctrl-C. The address is printed as one line of\n"
            "JSON. The base install and the platform's own package are enough: neither a compiler\n"
            "nor PyTorch is needed here."
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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(serve)
    serve.set_defaults(run=run)
    add_keygen_parser(actions)
    add_tracker_parser(actions)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from tapml_rpc.supervisor.serve import serve

    return serve(options_from(arguments))
