"""``tapml carve``: record every call site's inputs and outputs on the reference."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tapml.cli.model_arguments import (
    DEFAULT_MODEL,
    add_model_arguments,
    add_reference_argument,
    byte_size,
    given_settings,
)
from tapml.cli.progress import watch
from tapml.runs.wording import counted
from tapml_targets.errors import InputError

_EPILOG: Final = """\
examples:
  tapml carve --out my-suite                                     everything, the shipped model
  tapml carve --model ~/models/my-llama --out attention --operator '*softmax*' --layer 0
  tapml carve --out decode --entry decode --step 1 --step 2 --budget 64M
  tapml carve --export pytest tests/carved                       as pytest files, at once
  tapml carve --from-suite my-suite --export pytest tests/carved --libraries opencl
  tapml carve --out my-suite --reference opencl:1                recorded on that device

Needs no device, unless --reference names one. `tapml replay my-suite` replays the tests on one,
without the model; `pytest tests/carved --tapml-device opencl` runs exported ones.
"""


def add_filter_arguments(parser: argparse.ArgumentParser) -> None:
    """``--operator``, ``--layer``, ``--step``, ``--entry``; each may be given several times."""
    group = parser.add_argument_group("filters (each may be given several times)")
    group.add_argument(
        "--operator", action="append", default=[], metavar="PATTERN", help="by name, '*matmul*'"
    )
    group.add_argument(
        "--layer", action="append", default=[], type=int, metavar="N", help="numbered from 0"
    )
    group.add_argument(
        "--step", action="append", default=[], type=int, metavar="N", help="0 is the prefill"
    )
    group.add_argument(
        "--entry", action="append", default=[], metavar="NAME", help="prefill, decode"
    )


def filters_of(arguments: argparse.Namespace) -> Any:
    """The filters given on the command line."""
    from tapml.suite.selection import Filters

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
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the new suite")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing suite or export"
    )
    parser.add_argument(
        "--budget",
        type=byte_size,
        metavar="SIZE",
        help="most bytes of its tensors without weights, 512M: the first call site of every "
        "operator in every entry comes first, then the others in execution order",
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
        help="also compile for this platform's common limits (opencl), or for the limits of a "
        "device of this machine (opencl:1); may be given several times",
    )
    add_model_arguments(parser)
    add_reference_argument(parser)
    add_filter_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="only the last line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carve a suite, export one, or both."""
    from tapml.export import cases as export_cases
    from tapml.suite import folder as suite_folder

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
    # Check the target before anything is computed.
    export_cases.check_target(Path(folder), overwrite=arguments.overwrite)
    if arguments.from_suite is not None:
        if arguments.out is not None:
            raise InputError("--from-suite exports an existing suite: leave out --out")
        return _export(arguments, arguments.from_suite, Path(folder))
    if arguments.out is not None:
        _carve(arguments, arguments.out)
        return _export(arguments, arguments.out, Path(folder))
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    # On the file system of the export, so that files can be linked.
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        _carve(arguments, Path(scratch) / "suite")
        return _export(arguments, Path(scratch) / "suite", target)


def _export(arguments: argparse.Namespace, suite: Path, folder: Path) -> int:
    with watch(quiet=arguments.quiet) as watcher:
        from tapml.export.pytest_files import export_pytest
        from tapml.runs.phases import Phases
        from tapml.suite.suite import Suite
        from tapml_targets.platforms import DEFAULT_PLATFORM

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
            tests = phase.detail = counted(count, "test")
    files = counted(len(cases.files), "file")
    device = next(iter(arguments.libraries), DEFAULT_PLATFORM)
    print(f"{tests} in {files}: pytest {folder} --tapml-device {device}")
    return 0


def _targets(names: list[str]) -> dict[str, Any]:
    """The compilation target of each named platform or device."""
    from tapml.export.pytest_files import portable_target
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
    from tapml.session.settings import Settings

    given = given_settings(arguments)
    settings = Settings(**{"model": DEFAULT_MODEL, "target": "cpu", **given})
    with watch(quiet=arguments.quiet) as watcher:
        from tapml.offload.reference_device import opened_reference
        from tapml.runs.phases import Phases

        phases = Phases(watcher)
        with opened_reference(settings, phases) as on:
            # Slow imports come inside the watch, and behind a device that may not be there.
            from tapml.carving.record import carve
            from tapml.execute.device_reference import executor_on
            from tapml.offload.rooted_reference import open_rooted_reference
            from tapml.offload.session_suite import carving_progress

            rooted = open_rooted_reference(settings, phases, on=on)
            plan, weights = rooted.imported.plan, rooted.imported.weights
            executor = executor_on(plan, weights, rooted.reference)
            with phases.phase(
                "carve tests", group="overhead", platform=rooted.platform, once=True
            ) as phase:
                suite = carve(
                    rooted.model,
                    executor,
                    rooted.cases,
                    out,
                    filters=filters_of(arguments),
                    max_new_tokens=settings.new_tokens,
                    budget_bytes=arguments.budget,
                    progress=carving_progress(phase, len(rooted.cases), settings.new_tokens),
                    overwrite=arguments.overwrite,
                    durable=True,
                )
                with suite:
                    phase.detail = counted(int(suite.facts["tests"]), "test")
                    summary = suite.summary()
                    without = tuple(suite.facts.get("operators_left_out") or ())
    operators = len({operator for operator, _ in summary.tests_per_operator})
    print(
        f"{counted(summary.tests, 'test')} of {counted(operators, 'operator')} from "
        f"{counted(summary.runs, 'run')} of {counted(summary.prompts, 'prompt')}; "
        f"{summary.stored_bytes / 1e6:.1f} MB stored for "
        f"{summary.tensor_bytes / 1e6:.1f} MB of tensors"
    )
    if without:
        left = counted(len(without), "operator")
        print(f"the budget leaves {left} without a test: {', '.join(without)}")
    if settings.reference:
        print(f"recorded on {suite.reference}")
    if arguments.out is not None:
        print(f"suite: {out}")
    return 0
