"""``tapml carve``: record every call site's inputs and outputs on the reference."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tapml.cli.model_arguments import (
    DEFAULT_MODEL,
    add_model_arguments,
    byte_size,
    given_settings,
)
from tapml.cli.progress import watch
from tapml_targets.errors import InputError

_EPILOG: Final = """\
examples:
  tapml carve --out my-suite                                     everything, the shipped model
  tapml carve --model ~/models/my-llama --out attention --operator '*softmax*' --layer 0
  tapml carve --out decode --entry decode --step 1 --step 2 --budget 64M
  tapml carve --export pytest tests/carved                       as pytest files, at once
  tapml carve --from-suite my-suite --export pytest tests/carved --libraries opencl

Needs no device. `tapml replay my-suite` replays the tests on one, without the model;
`pytest tests/carved --tapml-device opencl` runs exported ones.
"""


def add_filter_arguments(parser: argparse.ArgumentParser) -> None:
    """``--operator``, ``--layer``, ``--step``, ``--entry``; each may be given several times."""
    group = parser.add_argument_group("filters (each may be given several times)")
    group.add_argument(
        "--operator", action="append", default=[], metavar="PATTERN", help="names, '*matmul*'"
    )
    group.add_argument("--layer", action="append", default=[], type=int, metavar="N")
    group.add_argument(
        "--step", action="append", default=[], type=int, metavar="N", help="0 is the prefill"
    )
    group.add_argument(
        "--entry", action="append", default=[], metavar="NAME", help="prefill, decode"
    )


def filters_of(arguments: argparse.Namespace) -> Any:
    """The filters that were given, as the suite takes them."""
    from tapml.carving.selection import Filters

    return Filters(
        operators=tuple(arguments.operator),
        layers=tuple(arguments.layer),
        steps=tuple(arguments.step),
        entries=tuple(arguments.entry),
    )


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "carve",
        help="record every operator's real inputs and outputs as tests",
        description="Run prompts on the reference; record what every call site reads and writes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the new suite")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a suite or exported tests that are there"
    )
    parser.add_argument(
        "--budget",
        type=byte_size,
        metavar="SIZE",
        help="most its tensors may take, weights apart, 512M: the first call site of every "
        "operator in every entry comes first, then the rest in the order in which it runs",
    )
    group = parser.add_argument_group("export")
    group.add_argument(
        "--export",
        nargs=2,
        metavar=("pytest", "FOLDER"),
        help="write pytest files that run on any device without the model",
    )
    group.add_argument(
        "--from-suite", type=Path, metavar="SUITE", help="export this suite instead of carving one"
    )
    group.add_argument(
        "--libraries",
        action="append",
        default=[],
        metavar="NAME",
        help="compile for this platform besides, for what every device of it has (opencl), or for "
        "the limits of a device of this machine (opencl:1); may be given several times",
    )
    add_model_arguments(parser)
    add_filter_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="only the last line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carve a suite, export one, or both."""
    from tapml.carving import export_cases, suite_folder

    if arguments.out is not None:
        suite_folder.check_target(arguments.out, overwrite=arguments.overwrite)
    if arguments.export is None:
        if arguments.out is None or arguments.from_suite is not None:
            raise InputError(
                "expected --out FOLDER for the new suite, --export pytest FOLDER, or both; "
                "--from-suite goes with --export"
            )
        return _carve(arguments, arguments.out)
    kind, folder = arguments.export
    if kind != "pytest":
        raise InputError(f"--export {kind}: tests are exported as `pytest`")
    # What is in the way is said before anything is computed.
    export_cases.check_target(Path(folder), overwrite=arguments.overwrite)
    if arguments.from_suite is not None:
        if arguments.out is not None:
            raise InputError("--from-suite exports a suite that is there: leave out --out")
        return _export(arguments, arguments.from_suite, Path(folder))
    if arguments.out is not None:
        _carve(arguments, arguments.out)
        return _export(arguments, arguments.out, Path(folder))
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the export, so that the suite's files can be linked.
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        _carve(arguments, Path(scratch) / "suite")
        return _export(arguments, Path(scratch) / "suite", target)


def _export(arguments: argparse.Namespace, suite: Path, folder: Path) -> int:
    with watch(quiet=arguments.quiet) as watcher:
        from tapml.carving.export_pytest import export_pytest
        from tapml.carving.suite import Suite
        from tapml.offload.phases import Phases

        phases = Phases(watcher)
        with (
            Suite.open(suite) as opened,
            phases.phase("export tests", group="overhead", platform="llvm", once=True) as phase,
        ):
            cases = export_pytest(
                opened,
                folder,
                filters=filters_of(arguments),
                targets=_targets(arguments.libraries),
                overwrite=arguments.overwrite,
                progress=lambda done: phase.progress(done.tests, done.total),
            )
            count = sum(len(file.tests) for file in cases.files.values())
            phase.detail = f"{count} tests"
    print(f"{count} tests in {len(cases.files)} files: pytest {folder} --tapml-device opencl")
    return 0


def _targets(names: list[str]) -> dict[str, Any]:
    """What to compile for, by platform.

    Raises
    ------
    InputError
        If a platform is unknown or named twice.
    NoSuchDeviceError
        If a device is named that is not here.
    """
    from tapml.carving.export_pytest import portable_target
    from tapml_targets.ranking import find_device
    from tapml_targets.target import Target

    targets: dict[str, Any] = {}
    for name in names:
        platform, _, index = name.partition(":")
        if platform in targets:
            raise InputError(f"--libraries {name}: {platform} was named before")
        targets[platform] = (
            Target(platform, limits=find_device(name).limits)
            if index
            else portable_target(platform)
        )
    return targets


def _carve(arguments: argparse.Namespace, out: Path) -> int:
    """Carve a suite into `out`."""
    from tapml.offload.settings import Settings

    given = given_settings(arguments)
    settings = Settings(**{"model": DEFAULT_MODEL, "target": "cpu", **given})
    with watch(quiet=arguments.quiet) as watcher:
        # What takes seconds to import is watched, too.
        from tapml.carving.record import carve
        from tapml.execute.executor import Executor
        from tapml.offload.phases import Phases
        from tapml.offload.rooted_reference import open_rooted_reference
        from tapml.offload.session_suite import carving_progress

        phases = Phases(watcher)
        rooted = open_rooted_reference(settings, phases)
        executor = Executor(rooted.imported.plan, rooted.imported.weights, rooted.reference)
        with phases.phase("carve tests", group="overhead", platform="llvm", once=True) as phase:
            suite = carve(
                rooted.model,
                executor,
                rooted.prompts,
                out,
                filters=filters_of(arguments),
                max_new_tokens=settings.new_tokens,
                budget_bytes=arguments.budget,
                progress=carving_progress(phase, len(rooted.prompts), settings.new_tokens),
                overwrite=arguments.overwrite,
                durable=True,
            )
            with suite:
                phase.detail = f"{suite.facts['tests']} tests"
                summary = suite.summary()
                without = tuple(suite.facts.get("operators_left_out") or ())
    operators = len({operator for operator, _ in summary.tests_per_operator})
    print(
        f"{summary.tests} tests of {operators} operators from {summary.runs} runs of "
        f"{summary.prompts} prompts; {summary.stored_bytes / 1e6:.1f} MB stored for "
        f"{summary.tensor_bytes / 1e6:.1f} MB of tensors"
    )
    if without:
        print(f"the budget leaves {len(without)} operators without a test: {', '.join(without)}")
    if arguments.out is not None:
        print(f"suite: {out}")
    return 0
