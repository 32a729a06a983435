"""``tapml validate``: all operators and the whole model on a device, in one go."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.offload import add_migration_arguments, finish, session_settings
from tapml.cli.progress import watch
from tapml.cli.validate_matrix import add_matrix_arguments, validate_on_all
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.compare.policy import Policy

_EPILOG: Final = """\
examples:
  tapml validate                                    the shipped model on the default OpenCL device
  tapml validate --model ~/models/my-llama --device opencl:1 --json
  tapml validate --device webgpu:0 --device webgpu:1 --device tracker:firefox --report matrix.html

Like `tapml offload --keep-going` in a folder that is deleted afterwards: every operator is tried,
and the table of verdicts is what remains. Use `tapml offload` to keep tests, kernels and a report.

Several devices get the same kernels, as far as they are of one platform, and the same tests. Each
is held against the reference; where two that run the same kernel differ, that is said as well: who
agrees with whom, who stands alone, at which element, and who is farther from float64.
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
    add_migration_arguments(parser, several_devices=True)
    add_matrix_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Validate; 0 if everything passes, 1 if not."""
    from tapml.compare.policy_file import policy_of
    from tapml.offload.session import OffloadSession
    from tapml.offload.settings import RunOptions

    policy = None if arguments.policy is None else policy_of(arguments.policy)
    devices: list[str] = arguments.device or []
    arguments.device = devices[0] if len(devices) == 1 else None
    if len(devices) > 1:
        return _validate_on_all(devices, arguments, policy or policy_of(None))
    if arguments.report is not None:
        raise InputError(
            "--report is a page of several devices: name two or more with --device, or use `tapml "
            "offload`, which writes a report of one"
        )
    _, settings = session_settings(arguments)
    with tempfile.TemporaryDirectory(prefix="tapml-validate-") as folder:
        session = OffloadSession.create(Path(folder), settings)
        options = RunOptions(
            keep_going=True,
            workers=arguments.workers,
            limits=arguments.limits,
            kernels=tuple(arguments.kernels) or None,
            policy=policy,
        )
        with watch(quiet=arguments.quiet) as watcher:
            result = session.run(watcher, options)
        return finish(result, arguments, report=False)


def _validate_on_all(devices: list[str], arguments: argparse.Namespace, policy: Policy) -> int:
    from tapml_rpc.browser_device import without_opening

    for name in ("target", "limits"):
        if getattr(arguments, name) is not None:
            raise InputError(
                f"--{name} says nothing to several devices: kernels are made for what all of a "
                "platform have"
            )
    # The model's tests come from the CPU; each device's own platform says what is compiled.
    arguments.target = "cpu"
    if arguments.no_open:
        devices = [without_opening(device) for device in devices]
    _, settings = session_settings(arguments)
    return validate_on_all(settings, devices, arguments, policy)
