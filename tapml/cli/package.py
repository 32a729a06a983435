"""``tapml package``: what ships, from a session that has finished."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

_EPILOG: Final = """\
examples:
  tapml package my-session                        writes the folder my-session-package
  tapml package my-session --archive              writes my-session-package.zip, one file
  tapml package my-session --out models/my-model --force
  tapml run my-session-package --prompt "The value of the attribute"

In Python:
  import tapml as tml
  model = tml.load_package("my-session-package")
  print(model.generate("The value of the attribute"))

A package holds plan, kernels, weights and tokenizer. It runs with the base install and the device's
driver; package.json says what it was validated on and has a hash of every file. The session must
have ended with every operator on the target (`tapml offload`).
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "package",
        help="write what ships: a folder or archive that the base install runs",
        description="Write plan, kernels, weights and tokenizer of a finished session as something "
        "that ships.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("session", type=Path, help="folder of a finished session")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="PATH", help="default: SESSION-package beside the session"
    )
    parser.add_argument(
        "--archive", action="store_true", help="one zip archive, which runs as it is"
    )
    parser.add_argument("--force", action="store_true", help="replace a package that is there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the package and say what it is."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from tapml.package.make import make_package

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    # Elsewhere than in a terminal it would leave an empty line.
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("reading the session", total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, description="weights", completed=done, total=total)

        made = make_package(
            arguments.session,
            arguments.out,
            archive=arguments.archive,
            force=arguments.force,
            progress=show,
        )
    if made.recovered:
        print(f"note: {made.recovered}", file=sys.stderr)
    manifest = made.manifest
    print(f"{made.path}  {made.nbytes / 1e6:.1f} MB")
    print(f"  {manifest.verdict['text']}")
    print(f"  {manifest.tokenizer.text}")
    print(f"run it: tapml run {made.path} {_argument(manifest.tokenizer.reader)}")
    return 0


def _argument(reader: str) -> str:
    return '--tokens "1 2 3"' if reader == "none" else '--prompt "The beginning of a text"'
