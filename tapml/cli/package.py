"""``tapml package``: a deployable package from a finished session."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_ARCHIVES: Final = frozenset({".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"})
_EPILOG: Final = """\
examples:
  tapml package my-session                        writes the folder my-session-package
  tapml package my-session --archive              writes my-session-package.zip
  tapml package my-session --out my-model.zip     an archive by its name
  tapml package my-session --out models/my-model --force
  tapml run my-session-package --prompt "The value of the attribute"
  tapml package my-session --browser --out site   a static site that generates text

In Python:
  import tapml as tml
  model = tml.load_package("my-session-package")
  print(model.generate("The value of the attribute"))

A package holds plan, kernels, weights and tokenizer. It needs the base install, the device's driver
and, for text, the extra `run`. package.json names the validated device and has a hash of each file.
The session must have ended with every operator on the target (`tapml offload`). --browser takes a
session with --target webgpu or its package; its output needs no Python on the server.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "package",
        help="write a folder or archive that the base install runs",
        description="Write plan, kernels, weights and tokenizer of a finished session.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "session", type=Path, help="folder of a finished session; with --browser also a package"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="PATH",
        help="default: SESSION-package beside the session, SESSION-browser with --browser",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--archive", action="store_true", help="one zip archive, which runs without unpacking"
    )
    form.add_argument(
        "--browser",
        action="store_true",
        help="a folder for a web server that generates text in browsers with WebGPU",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing package")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the package."""
    if arguments.browser:
        return _browser(arguments)

    from tapml.package.make import make_package

    with _progress() as show:
        made = make_package(
            arguments.session,
            arguments.out,
            archive=_is_archive(arguments.out) or arguments.archive,
            force=arguments.force,
            progress=show,
        )
    if made.recovered:
        print(f"note: {made.recovered}", file=sys.stderr)
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    manifest = made.manifest
    print(f"{made.path}  {made.nbytes / 1e6:.1f} MB")
    print(f"  {manifest.verdict['text']}")
    print(f"  {manifest.tokenizer.text}")
    from tapml.workloads import workload_of

    takes_text = manifest.tokenizer.reader != "none"
    argument = workload_of(manifest.model).argument(takes_text=takes_text)
    print(f"run it: tapml run {shlex.quote(str(made.path))} {argument}")
    return 0


def _is_archive(out: Path | None, *, allowed: tuple[str, ...] = (".zip",)) -> bool:
    """Whether a name asks for an archive; other archive suffixes are errors."""
    from tapml_targets.errors import InputError

    suffix = "" if out is None else out.suffix.lower()
    if suffix in _ARCHIVES and suffix not in allowed:
        what = "a folder or a .zip archive" if allowed else "a folder"
        raise InputError(f"--out {out}: expected the name of {what}")
    return suffix in allowed


def _browser(arguments: argparse.Namespace) -> int:
    from tapml.package.browser_folder import make_browser_folder

    _is_archive(arguments.out, allowed=())
    with _progress() as show:
        made = make_browser_folder(
            arguments.session, arguments.out, force=arguments.force, progress=show
        )
    if made.recovered:
        print(f"note: {made.recovered}", file=sys.stderr)
    print(f"{made.path}  {made.nbytes / 1e6:.1f} MB, weights in {made.parts} part(s)")
    print(f"  {made.shipped.verdict.get('text', '')}")
    if made.shipped.note.reader == "none":
        print(f"  the page takes token ids only: {made.shipped.note.text}")
    else:
        print(f"  {made.shipped.note.text}")
    print(f"try it: python -m http.server --directory {shlex.quote(str(made.path))} 8000")
    print("  then open http://localhost:8000/ in a browser with WebGPU")
    return 0


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar for the bytes of weights."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    # Outside a terminal it would print an empty line.
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("reading the session", total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, description="weights", completed=done, total=total)

        yield show
