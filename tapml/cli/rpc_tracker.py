"""``tapml rpc tracker``: devices register with it and are lent to who asks."""

from __future__ import annotations

import argparse
from typing import Any

from tapml_rpc.tracker.options import add_arguments, options_from


def add_tracker_parser(actions: Any) -> None:
    """Register the action below ``tapml rpc``."""
    parser: argparse.ArgumentParser = actions.add_parser(
        "tracker",
        help="lend devices by name, kind or feature",
        description=(
            "Keep a list of devices and lend them, one after the other or shared, until Ctrl-C. A\n"
            "lease ends with its holder, however that ends. Devices that can only connect out are\n"
            "reached through the tracker's relay. The address is printed as one line of JSON."
        ),
        epilog=(
            "examples:\n"
            "  tapml rpc tracker                                 for this machine alone\n"
            "  tapml rpc tracker --bind 'tcp://*:9190' --key ~/.config/tapml/keys/lab.secret\n"
            "  tapml rpc tracker --websocket 'wss://*:9443'      for boards and browsers, too\n"
            "  tapml rpc tracker --browser                       starts a browser, as a device\n"
            "  tapml devices --tracker tcp://127.0.0.1:9190      what it has, and who holds it\n"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Track devices until told to stop."""
    from tapml_rpc.tracker.process import run_tracker

    return run_tracker(options_from(arguments))
