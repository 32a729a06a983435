"""Options that make slowness a verdict, of `tapml offload`, `tapml validate` and `tapml replay`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tapml.cli.model_arguments import times
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.replaying.pace import Pace


def add_pace_arguments(group: Any) -> None:
    """Declare ``--max-slowdown`` and ``--slow-against``."""
    group.add_argument(
        "--max-slowdown",
        type=times,
        metavar="X",
        help="an operator whose kernels take more than X times the reference's time fails "
        "(default: no bound)",
    )
    group.add_argument(
        "--slow-against",
        choices=("reference", "bandwidth"),
        default="reference",
        help="what --max-slowdown counts in: the reference's time (the default), or the time in "
        "which the device copies as many bytes as the operator reads and writes",
    )


def pace_of(arguments: argparse.Namespace) -> Pace | None:
    """The bound, if any.

    Raises
    ------
    InputError
        If only what it is against is named.
    """
    from tapml.replaying.pace import Pace

    if arguments.max_slowdown is None:
        if arguments.slow_against != "reference":
            raise InputError("--slow-against has no effect without --max-slowdown: give both")
        return None
    return Pace(arguments.max_slowdown, arguments.slow_against)
