"""``tapml offload``: move a model to a target, one operator at a time."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.model_arguments import (
    DEFAULT_MODEL,
    add_model_arguments,
    add_reference_argument,
    byte_size,
    given_settings,
    positive,
    writable_folder,
)
from tapml.cli.next_step import next_step, resume_command
from tapml.cli.pace import add_pace_arguments, pace_of
from tapml.cli.progress import watch
from tapml.cli.remote_devices import add_no_open, wanted_device
from tapml.cli.report import time_lines
from tapml.cli.termination import exit_code_of, word_for
from tapml.devices.browser import is_browser
from tapml.devices.reach import check_spec, is_remote
from tapml.session.run_settings import DEVICE_LIMITS
from tapml.session.run_state import in_one_line
from tapml.session.settings import RunOptions, Settings
from tapml_targets.errors import InputError
from tapml_targets.limit_profiles import load_profile
from tapml_targets.platforms import DEFAULT_PLATFORM, browser_platform, check_platform

if TYPE_CHECKING:
    from tapml.offload.session import SessionResult

_DEFAULTS: Final = {"strategy": "one-by-one", "order": "graph"}

_EPILOG: Final = """\
examples:
  tapml offload                                          the shipped model to OpenCL
  tapml offload --model ~/models/my-llama --target opencl --session my-session
  tapml offload --model net.onnx --input x.npy           an ONNX file, run on these arrays
  tapml offload --session my-session                     continue where it stopped
  tapml offload --session my-session --device tcp://mac:9190   go on with another device
  tapml offload --keep-on-source '*sort*' --keep-going   leave some operators on the source
  tapml offload --policy limits.toml                     other limits, with reasons
  tapml offload --target webgpu --limits mali            kernels that also run on phones
  tapml offload --reference opencl:1 --target vulkan     recorded on one device, moved to another
  tapml offload --device browser                         to WebGPU, in a browser that tapml opens

The session's folder holds the journal, the carved tests, the compiled kernels, a report as HTML and
JSON, and a repro folder for every operator that failed. You may interrupt it at any time; run it
again with the same folder to continue.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "offload",
        help="move a model to a device, one operator at a time, checked as it goes",
        description="Move a model to a device, one operator at a time, checked as it goes.",
        epilog=_EPILOG,
    )
    add_migration_arguments(parser)
    group = parser.add_argument_group("session")
    group.add_argument(
        "--session",
        type=Path,
        metavar="FOLDER",
        help="folder of the session (default: tapml-sessions/MODEL-TARGET)",
    )
    group.add_argument(
        "--restart", action="store_true", help="start again in a folder that holds a session"
    )
    group.add_argument(
        "--keep-going",
        action="store_true",
        help="leave failed operators on the source and continue",
    )
    group.add_argument(
        "--keep-on-source",
        action="append",
        default=[],
        metavar="PATTERN",
        help="operators that stay on the source, '*sort*'; may be given several times",
    )
    group.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="move these operators and leave all others on the source; may be given several times",
    )
    add_pace_arguments(group)
    group.add_argument(
        "--strategy",
        choices=("one-by-one", "bisect"),
        default=_DEFAULTS["strategy"],
        help="check the model after every operator (the default), or with all operators moved, "
        "bisecting if that fails",
    )
    group.add_argument(
        "--order",
        choices=("graph", "reverse", "call-sites"),
        default=_DEFAULTS["order"],
        help="order of operators: the model's (the default), reverse, or most used first",
    )
    group.add_argument(
        "--kernels",
        action="append",
        type=Path,
        metavar="FOLDER",
        help="hand-written kernels shared between sessions (see tapml kernel), or own-operators, "
        "for those that tapml has of its own operators; may be given several times, and also "
        "applies to later runs of the session",
    )
    group.add_argument(
        "--device-memory",
        type=byte_size,
        default=0,
        metavar="SIZE",
        help="most device memory to use (default: what the device reports)",
    )
    parser.set_defaults(run=run)


def add_migration_arguments(
    parser: argparse.ArgumentParser, *, several_devices: bool = False
) -> None:
    """Declare what `tapml offload` and `tapml validate` share: model, target, device, output."""
    add_model_arguments(parser)
    add_reference_argument(parser)
    group = parser.add_argument_group("migration")
    group.add_argument(
        "--target", metavar="PLATFORM", help=f"platform to move to (default: {DEFAULT_PLATFORM})"
    )
    group.add_argument(
        "--device",
        action="append" if several_devices else "store",
        metavar="NAME",
        help="a specific device: opencl:1 (see tapml devices), a server's tcp://HOST:PORT or "
        "wss://HOST:PORT, tracker:NAME, or browser, which opens a page if none is registered"
        + ("; several are also compared with each other" if several_devices else ""),
    )
    add_no_open(group)
    group.add_argument(
        "--limits",
        metavar="PROFILE",
        help="compile kernels for the limits of another device and check them against both: "
        "a profile of the target, or its file"
        + ("" if several_devices else "; kept for the session until `--limits device`"),
    )
    group.add_argument(
        "--budget", type=byte_size, metavar="SIZE", help="limit for the carved tests (default: 4G)"
    )
    group.add_argument(
        "--workers",
        type=positive,
        default=0,
        metavar="N",
        help="parallel compilations (default: one per processor)",
    )
    group.add_argument(
        "--policy", type=Path, metavar="FILE", help="limits of the verdicts, as TOML"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the report as JSON")
    output.add_argument(
        "--quiet", action="store_true", help="no progress, only failures and the outcome"
    )


def session_settings(arguments: argparse.Namespace) -> tuple[dict[str, Any], Settings]:
    """The settings that were given, and the settings of a new session.

    Raises
    ------
    InputError
        If the model or the target is unknown, or the device is not one of the target's.
    """
    given = given_settings(arguments)
    device = wanted_device(arguments)
    for name, value in (("target", arguments.target), ("device", device)):
        if value is not None:
            given[name] = value
    if device is not None and is_browser(device):
        check_spec(device)
        given.setdefault("target", browser_platform())
    if arguments.device is not None and not is_remote(arguments.device):
        check_spec(arguments.device)
        given.setdefault("target", arguments.device.partition(":")[0])
    if arguments.budget is not None:
        given["budget_bytes"] = arguments.budget
    settings = Settings(**{"model": DEFAULT_MODEL, "target": DEFAULT_PLATFORM, **given})
    check_platform(settings.target)
    if arguments.limits not in (None, DEVICE_LIMITS):
        load_profile(settings.target, arguments.limits)
    # The platform of a remote device is known only once it is reached.
    local = settings.device and not is_remote(settings.device)
    if local and settings.device.partition(":")[0] != settings.target:
        raise InputError(
            f"--device {settings.device} is not a device of {settings.target}; leave out --target, "
            f"or name one, {settings.target}:0 (see tapml devices)"
        )
    browsers = browser_platform()
    if settings.device and is_browser(settings.device) and settings.target != browsers:
        raise InputError(
            f"--device {settings.device} is a {browsers} device, not one of {settings.target}; "
            "leave out --target"
        )
    return given, settings


def run(arguments: argparse.Namespace) -> int:
    """Run or resume a session."""
    from tapml.cli.session_name import check_session_name
    from tapml.offload.session import OffloadSession
    from tapml.verdicts.policy_file import policy_of

    given, new = session_settings(arguments)
    folder = arguments.session or Path("tapml-sessions") / f"{Path(new.model).name}-{new.target}"
    if arguments.session and arguments.model is None:
        check_session_name(folder, new.model)
    session = OffloadSession.create_or_open(
        writable_folder(folder), new, given=given, restart=arguments.restart
    )
    options = RunOptions(
        keep_going=arguments.keep_going,
        keep_on_source=tuple(arguments.keep_on_source),
        only=tuple(arguments.only),
        strategy=arguments.strategy,
        order=arguments.order,
        kernels=None if arguments.kernels is None else tuple(arguments.kernels),
        memory_bytes=arguments.device_memory,
        limits=arguments.limits,
        workers=arguments.workers,
        pace=pace_of(arguments),
        policy=None if arguments.policy is None else policy_of(arguments.policy),
    )
    try:
        with watch(quiet=arguments.quiet) as watcher:
            result = session.run(watcher, options)
    except KeyboardInterrupt as interrupt:
        print(
            f"tapml: {word_for(interrupt)}; no partial files are left: continue with "
            f"`{resume_command(folder, _again(arguments))}`",
            file=sys.stderr,
        )
        return exit_code_of(interrupt)
    code = finish(result, arguments)
    if not arguments.json:
        print(next_step(result.report, folder, _again(arguments)))
    return code


def _again(arguments: argparse.Namespace) -> str:
    """Options that the next run must repeat, quoted for a shell."""
    words: list[str] = ["--keep-going"] if arguments.keep_going else []
    for name in ("only", "keep_on_source"):
        for pattern in getattr(arguments, name):
            words += [f"--{name.replace('_', '-')}", pattern]
    for name in ("strategy", "order"):
        if getattr(arguments, name) != _DEFAULTS[name]:
            words += [f"--{name}", getattr(arguments, name)]
    if arguments.max_slowdown:
        words += ["--max-slowdown", f"{arguments.max_slowdown:g}"]
        words += ["--slow-against", arguments.slow_against]
    if arguments.device_memory:
        words += ["--device-memory", str(arguments.device_memory)]
    return shlex.join(words)


def finish(result: SessionResult, arguments: argparse.Namespace, *, report: bool = True) -> int:
    """Print how a session ended; return the exit code."""
    if arguments.json:
        print(json.dumps(result.report, indent=1))
        return result.exit_code
    if not report:
        for operator in result.report["operators"]:
            reason = in_one_line(operator["reason"])
            print(f"{operator['state']:<8} {operator['name']}  {reason}".rstrip())
    print(f"{result.status}: {result.text}")
    for line in time_lines(result.report["operators"]) if report else ():
        print(line)
    for operator in result.report["operators"]:
        for line in operator["suspects"]:
            print(f"{operator['name']}: {line}")
    for operator in result.report["operators"]:
        if operator["repro"] and report:
            print(f"failed: {operator['name']}: {in_one_line(operator['reason'])}")
            places = {
                (o["module_path"] or "the model", o["source"]): None for o in operator["origins"]
            }
            for module_path, source in list(places)[:3]:
                print(f"  from {module_path} ({source})")
            for found in operator["diagnosis"]:
                print(f"  {found['kind']}: {in_one_line(found['text'])}")
            print(f"  repro: {operator['repro']}")
    if report:
        print(f"report: {result.report_path}")
    return result.exit_code
