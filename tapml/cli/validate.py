"""``tapml validate``: all operators and the whole model on a device, in one go."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, Final

from tapml.cli.offload import add_migration_arguments, finish, session_settings
from tapml.cli.progress import watch

_EPILOG: Final = """\
examples:
  tapml validate                                    the shipped model on the default OpenCL device
  tapml validate --model ~/models/my-llama --device opencl:1 --json

Like `tapml offload --keep-going` in a folder that is deleted afterwards: every operator is tried,
and the table of verdicts is what remains. Use `tapml offload` to keep tests, kernels and a report.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "validate",
        help="check every operator and the whole model on a device, keeping nothing",
        description="Check every operator and the whole model on a device, keeping nothing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_migration_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Validate; 0 if everything passes, 1 if not."""
    from tapml.compare.policy_file import policy_of
    from tapml.offload.session import OffloadSession
    from tapml.offload.settings import RunOptions

    _, settings = session_settings(arguments)
    with tempfile.TemporaryDirectory(prefix="tapml-validate-") as folder:
        session = OffloadSession.create(Path(folder), settings)
        options = RunOptions(
            keep_going=True,
            workers=arguments.workers,
            limits=arguments.limits,
            policy=None if arguments.policy is None else policy_of(arguments.policy),
        )
        with watch(quiet=arguments.quiet) as watcher:
            result = session.run(watcher, options)
        return finish(result, arguments, report=False)
