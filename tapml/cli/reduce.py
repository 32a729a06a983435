"""``tapml reduce``: makes a failing test smaller while it keeps failing."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from tapml.cli.model_arguments import seconds
from tapml_targets.errors import EXIT_INTERRUPTED, InputError
from tapml_targets.platforms import DEFAULT_PLATFORM

DEFAULT_SECONDS: Final = 120.0
KERNEL_SECONDS: Final = 10.0
"""A candidate whose kernel takes longer counts as a lost device."""

_EPILOG: Final = """\
examples:
  tapml reduce my-session/repro/softmax                 writes my-session/repro/softmax-reduced
  tapml reduce softmax.tapml.zip -o small --seconds 600
  tapml replay my-session/repro/softmax-reduced         fails as the original does

Dynamic extents shrink first, with the same kernel; then static ones, recompiling for each, if the
compiler here reproduces the failing kernel; then values become zero, one, integers, short decimals.
Every smaller test is judged by a new float64 result, so the toolkit is needed. Ctrl-C keeps the
best so far.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "reduce",
        help="make a failing test smaller while it keeps failing",
        description="Shrink the shapes and simplify the inputs of a failing test.",
        epilog=_EPILOG,
    )
    parser.add_argument("source", type=Path, help="a repro folder or a bundle (.tapml.zip)")
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=f"{DEFAULT_PLATFORM}, {DEFAULT_PLATFORM}:1 (default: the one it failed on)",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FOLDER",
        help="the new repro folder (default: beside the source, <operator>-reduced)",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=DEFAULT_SECONDS,
        metavar="N",
        help=f"budget; the best so far is written when it is spent (default: {DEFAULT_SECONDS:g})",
    )
    parser.add_argument(
        "--same-kernel", action="store_true", help="never compile for smaller static extents"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing folder")
    parser.add_argument("--json", action="store_true", help="print the content of reduced.json")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Reduce; 0 if a smaller test was written, 1 if it does not fail."""
    from tapml.bundle.source import read_failing_test
    from tapml.reduce.reducing import reduce_repro
    from tapml.reduce.reduction import DOCUMENT
    from tapml.repro.folder import device_like
    from tapml.repro.writing import write_repro
    from tapml_rpc.local import open_local

    repro = read_failing_test(arguments.source)
    folder = arguments.out or arguments.source.with_name(f"{repro.operator.name}-reduced")
    if folder.exists() and not arguments.overwrite:
        raise InputError(f"{folder} exists: choose another (-o), or give --overwrite")
    device = arguments.device or device_like(repro.device)
    progress = _Progress(quiet=arguments.quiet)
    try:
        reduction = reduce_repro(
            repro,
            lambda: open_local(device, kernel_deadline=KERNEL_SECONDS),
            seconds=arguments.seconds,
            recompile=not arguments.same_kernel,
            watcher=progress,
        )
    finally:
        progress.close()
    document = json.dumps(reduction.to_json(), indent=1) + "\n"
    write_repro(folder, reduction.failure, documents={DOCUMENT: document})
    if arguments.json:
        sys.stdout.write(document)
    else:
        print(
            f"{repro.operator.name}: {reduction.kind}, {reduction.trials} trials in "
            f"{reduction.seconds:.1f} s, {reduction.kept} kept"
        )
        print("\n".join(reduction.lines()))
        print(f"{reduction.failure.result.verdict.status}: {reduction.reason_after}")
        print(f"repro: {folder}")
    if reduction.ended == "interrupted":
        print("tapml: interrupted; the best so far is written", file=sys.stderr)
        return EXIT_INTERRUPTED
    if reduction.ended == "time":
        print(
            f"tapml: stopped after {arguments.seconds:g} s; more time (--seconds) may find a "
            "smaller test",
            file=sys.stderr,
        )
    return 0


class _Progress:
    """Progress: one changing line in a terminal, else a line every ten seconds."""

    _EVERY_SECONDS = 10.0

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._last = time.monotonic()

    def __call__(self, doing: str, tried: int, kept: int) -> None:
        line = f"{tried} tried, {kept} kept: {doing}"
        now = time.monotonic()
        if self._quiet:
            return
        if self._live:
            print(f"\r\x1b[K{line[:100]}", end="", file=sys.stderr, flush=True)
        elif now - self._last > self._EVERY_SECONDS:
            self._last = now
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave an empty line behind."""
        if self._live and not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
