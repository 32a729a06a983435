"""``tapml validate``: checks all operators and the model end to end on devices."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from tapml.cli.model_arguments import number
from tapml.cli.offload import add_migration_arguments, session_settings
from tapml.cli.pace import add_pace_arguments, pace_of
from tapml.cli.progress import watch
from tapml.cli.several_devices import (
    add_matrix_arguments,
    announce_absent,
    announce_rows,
    columns_for,
    print_matrix,
)
from tapml_targets.errors import InputError
from tapml_targets.platforms import DEFAULT_PLATFORM

_EPILOG: Final = """\
examples:
  tapml validate                                    the shipped model on the default OpenCL device
  tapml validate --model ~/models/my-llama --device opencl:1 --json
  tapml validate --model ~/models/my-llama --device opencl:1 --text book.txt    perplexity and KL
  tapml validate --reference opencl:1 --device vulkan     against operators recorded on a device
  tapml validate --device webgpu:0 --device webgpu:1 --device tracker:firefox --report matrix.html

It checks every operator, then the model end to end, and prints the verdicts. Use `tapml offload` to
keep tests, kernels and a report, and to find operators that fail only together.

With --text it only runs the model, over the text on the device and on the reference, and prints
perplexity, divergence, and where another token wins first, with the reference's margin there.

Several devices get the same tests and, per platform, the same kernels. Each is compared with the
reference; if two devices differ on a kernel, the report shows which ones agree, the element, and
which is farther from float64.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "validate",
        help="check every operator and the end-to-end result on a device, keeping nothing",
        description="Check every operator and the end-to-end result on a device, keeping nothing.",
        epilog=_EPILOG,
    )
    add_migration_arguments(parser, several_devices=True)
    add_matrix_arguments(parser)
    add_pace_arguments(parser.add_argument_group("speed"))
    group = parser.add_argument_group("text")
    group.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="run a decoder over this text in UTF-8, beside the reference, in windows of --context",
    )
    group.add_argument(
        "--text-tokens",
        type=number("a whole number of at least 2", int, 2, 1 << 31),
        metavar="N",
        help="use the first N tokens of the text (default: all)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Validate; 0 if everything passes, 1 if not."""
    from tapml.devices.browser import without_opening
    from tapml.verdicts.policy_file import policy_of

    policy, pace = policy_of(arguments.policy), pace_of(arguments)
    text = _text(arguments)
    devices: list[str] = arguments.device or [arguments.target or DEFAULT_PLATFORM]
    if len(devices) > 1 and arguments.target is not None:
        raise InputError("--target has no effect on several devices: each has a platform")
    if text is not None and pace is not None:
        raise InputError("--max-slowdown has no effect with --text, which times no operator")
    if text is not None and len(devices) > 1:
        raise InputError("--text takes one --device: run it once for each")
    if arguments.no_open:
        devices = [without_opening(device) for device in devices]
    if len(devices) == 1:
        # Refuses a device of another platform than --target.
        arguments.device = devices[0] if arguments.device else None
        session_settings(arguments)
    # Tests are carved on the reference; kernels are compiled for each device's platform.
    arguments.target, arguments.device = "cpu", None
    _, settings = session_settings(arguments)
    columns = columns_for(devices, arguments.limits)
    with watch(quiet=arguments.quiet or arguments.json) as watcher:
        from tapml.compiler.compiler import Compiler
        from tapml.matrix.running import opened
        from tapml.runs.phases import Phases
        from tapml.validation.run import check_opened, leave_out_without, run_validation

        with (
            opened(columns),
            Compiler(workers=arguments.workers or None) as compiler,
            tempfile.TemporaryDirectory(prefix="tapml-validate-") as folder,
        ):
            check_opened(columns)
            leave_out_without(columns, settings.dtype)
            announce_absent(columns)
            # Only now: it imports PyTorch.
            from tapml.validation.model_subject import open_model

            phases = Phases(watcher)
            if text is not None:
                from tapml.validation.on_text import validate_text

                found = validate_text(
                    text, settings, columns[0], compiler, phases,
                    kernels=arguments.kernels, most_tokens=arguments.text_tokens,
                )  # fmt: skip
                if arguments.json:
                    print(json.dumps(found.to_json(), indent=1, allow_nan=False))
                else:
                    print("\n".join(found.lines()))
                return found.exit_code
            with open_model(settings, columns, phases, policy, Path(folder)) as subject:
                report = run_validation(
                    subject,
                    columns,
                    compiler,
                    policy,
                    kernels=arguments.kernels,
                    pace=pace,
                    diagnose=True,
                    on_row=announce_rows(watcher, len(subject.operators)),
                )
    return print_matrix(report, arguments)


def _text(arguments: argparse.Namespace) -> str | None:
    """The text to run over, if any."""
    if arguments.text is None:
        if arguments.text_tokens is not None:
            raise InputError("--text-tokens has no effect without --text")
        return None
    if arguments.report is not None:
        raise InputError("--report has no effect with --text, which has no matrix; use --json")
    from tapml.validation.on_text import read_text

    return read_text(arguments.text)
