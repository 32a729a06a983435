"""Tries tapml on a machine with an NVIDIA GPU and no network: prepared here, run there.

python3 scripts/nvidia_machine.py prepare bundle --python 3.11 --python 3.12  here, with a network
python3 bundle/run.py --out results                                 there
python3 scripts/nvidia_machine.py table results/results.json        here: into docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

# The project's root instead of this folder, whose test.py would hide the standard library's.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.python_version import require_python

require_python()

from scripts import environment
from scripts.marked_section import write_between
from scripts.nvidia_bundle.rows import read_results, table

_THIS: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
EXTRAS: Final = ("host", "vulkan", "webgpu", "opencl", "simulator")
BEGIN: Final = "<!-- nvidia machine: written by scripts/nvidia_machine.py table -->"
END: Final = "<!-- nvidia machine: end -->"
_EPILOG: Final = """\
examples:
  python3 scripts/nvidia_machine.py prepare bundle
  python3 scripts/nvidia_machine.py prepare bundle --python 3.12 --architecture sm_90 \\
      --without nvidia-cuda-nvrtc --without numpy         for a machine that has both
  python3 scripts/nvidia_machine.py prepare bundle --no-wheels --platform opencl
  python3 bundle/run.py --help                            on the machine with the GPU
  python3 scripts/nvidia_machine.py table results/results.json

exit codes: 0 done; 2 bad input, or a step failed: the same command goes on where it stopped
"""


def main(arguments: list[str]) -> int:
    """Prepare a bundle, or put results into the documentation."""
    options = _parse(arguments)
    if options.command == "table":
        return _table(options.results, options.document)
    if not options.here:
        environment.enter(environment.ensure(EXTRAS))
    from scripts.nvidia_bundle.prepare import PLATFORMS, Wanted, limits_of, normalized, prepare
    from tapml_targets.errors import InputError
    from tapml_targets.limit_profiles import load_profile

    if options.no_wheels and options.without:
        raise environment.SetupError("--without goes with wheels: leave out --no-wheels")
    platforms = tuple(each for each in PLATFORMS if each in (options.platforms or PLATFORMS))
    wanted = Wanted(
        folder=options.folder.resolve(),
        work=(options.work or Path(f"{options.folder}-work")).resolve(),
        platforms=platforms,
        architecture=options.architecture,
        pythons=() if options.no_wheels else tuple(dict.fromkeys(options.pythons or (_THIS,))),
        without=frozenset(map(normalized, options.without)),
    )
    try:
        for platform in platforms:
            load_profile(platform, limits_of(platform, wanted.architecture))
    except InputError as error:
        raise environment.SetupError(str(error)) from error
    manifest = prepare(wanted, environment.say)
    sizes = {name: (wanted.folder / name).stat().st_size for name in manifest["files"]}
    print(f"{options.folder}: {sum(sizes.values()) / 2**20:.1f} MiB, {', '.join(platforms)}")
    print(f"there: python3 {options.folder.name}/run.py --out results")
    return 0


def _table(results: Path, document: Path) -> int:
    try:
        machine, rows = read_results(results)
        write_between(document, BEGIN, END, table(machine, rows))
    except (OSError, ValueError) as error:
        raise environment.SetupError(f"{error}") from error
    print(f"{document}: {len(rows)} parts of {machine.get('date')}")
    return 0


def _version(text: str) -> str:
    if not re.fullmatch(r"3\.\d{1,2}", text):
        raise argparse.ArgumentTypeError(f"expected a version such as 3.12, got {text!r}")
    return text


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="make a bundle, on a machine with a network")
    prepare.add_argument("folder", type=Path, help="the bundle")
    prepare.add_argument(
        "--python", dest="pythons", action="append", type=_version, metavar="VERSION",
        help="of the interpreter there; several carry wheels for each (default: this one's, "
        f"{_THIS})",
    )  # fmt: skip
    prepare.add_argument(
        "--architecture", default="sm_90", metavar="NAME",
        help="of the GPU there, a profile of `tapml offload --limits` (default: %(default)s)",
    )  # fmt: skip
    prepare.add_argument(
        "--platform", dest="platforms", action="append", default=[],
        choices=("cuda", "vulkan", "webgpu", "opencl"),
        help="only this one; may be given several times (default: all four)",
    )  # fmt: skip
    prepare.add_argument(
        "--without", action="append", default=[], metavar="PACKAGE",
        help="a distribution that is there already: its wheel is not carried",
    )  # fmt: skip
    prepare.add_argument(
        "--no-wheels", action="store_true", help="the interpreter there has all packages"
    )
    prepare.add_argument(
        "--here", action="store_true",
        help="use this interpreter and its packages instead of the project's environment",
    )  # fmt: skip
    prepare.add_argument(
        "--work", type=Path, metavar="FOLDER",
        help="sessions and wheels, found again by the next preparation (default: FOLDER-work)",
    )  # fmt: skip
    results = commands.add_parser("table", help="write results into the documentation")
    results.add_argument("results", type=Path, help="results.json, as run.py wrote it")
    results.add_argument(
        "--document", type=Path, default=environment.ROOT / "docs" / "benchmarks.md",
        metavar="FILE", help="a file with the markers (default: docs/benchmarks.md)",
    )  # fmt: skip
    return parser.parse_args(arguments)


if __name__ == "__main__":
    environment.run_script(main, "scripts/nvidia_machine.py")
