"""``tapml carve``: record every call site's inputs and outputs on the reference."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from tapml.cli.model_arguments import (
    DEFAULT_MODEL,
    add_model_arguments,
    byte_size,
    given_settings,
)
from tapml.cli.progress import watch

_EPILOG: Final = """\
examples:
  tapml carve --out my-suite                                     everything, the shipped model
  tapml carve --model ~/models/my-llama --out attention --operator '*softmax*' --layer 0
  tapml carve --out decode --entry decode --step 1 --step 2 --budget 64M

Needs no device. `tapml replay my-suite` replays the tests on one, without the model.
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
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the new suite")
    parser.add_argument("--overwrite", action="store_true", help="replace a suite that is there")
    parser.add_argument(
        "--budget", type=byte_size, metavar="SIZE", help="most its tensors may take, 512M"
    )
    add_model_arguments(parser)
    add_filter_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="only the last line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carve a suite."""
    from tapml.carving.record import carve
    from tapml.execute.executor import Executor
    from tapml.offload.phases import Phases
    from tapml.offload.rooted_reference import open_rooted_reference
    from tapml.offload.settings import Settings
    from tapml.offload.workbench import carving_progress

    given = given_settings(arguments)
    settings = Settings(**{"model": DEFAULT_MODEL, "target": "cpu", **given})
    with watch(quiet=arguments.quiet) as watcher:
        phases = Phases(watcher)
        rooted = open_rooted_reference(settings, phases)
        executor = Executor(rooted.imported.plan, rooted.imported.weights, rooted.reference)
        with phases.phase("carve tests", group="overhead", platform="llvm", once=True) as phase:
            suite = carve(
                rooted.model,
                executor,
                rooted.prompts,
                arguments.out,
                filters=filters_of(arguments),
                max_new_tokens=settings.new_tokens,
                budget_bytes=arguments.budget,
                progress=carving_progress(phase, len(rooted.prompts), settings.new_tokens),
                overwrite=arguments.overwrite,
            )
            with suite:
                phase.detail = f"{suite.facts['tests']} tests"
                summary = suite.summary()
    operators = len({operator for operator, _ in summary.tests_per_operator})
    print(
        f"{summary.tests} tests of {operators} operators from {summary.runs} runs of "
        f"{summary.prompts} prompts; {summary.stored_bytes / 1e6:.1f} MB stored for "
        f"{summary.tensor_bytes / 1e6:.1f} MB of tensors"
    )
    print(f"suite: {arguments.out}")
    return 0
