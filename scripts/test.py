"""Set up the project's environment, then run the checks and the tests.

`python3 scripts/test.py` runs everything, here and in continuous integration. Unknown arguments go
to pytest.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

# The project's root instead of this folder, whose test.py would hide the standard library's.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.python_version import require_python

require_python()

from scripts import debian, environment
from scripts.web_checks import NOT_RUN

EXTRAS = (
    "bench", "check", "compare", "cpu", "dask", "host", "invariants", "metal", "models", "opencl",
    "opencl-cpu", "openvino", "qr", "simulator", "test", "torchrec", "vulkan", "webgpu",
)  # fmt: skip
# They take a second or two: the tests begin behind them.
QUICK_CHECKS = {
    "ruff check": ["-m", "ruff", "check"],
    "ruff format": ["-m", "ruff", "format", "--check"],
}
# They run beside the tests: mypy keeps one core busy for most of a minute.
CHECKS = {"mypy": ["-m", "mypy"], "web": ["-m", "scripts.web_checks"]}
VERDICTS = {0: "passed", NOT_RUN: "not run"}
# Tests often wait for processes they started: on two cores four workers leave none idle.
WORKERS = ("-n", "4")
# However many there are: a file's tests share fixtures. Files with few tests may take longest:
# tests/conftest.py orders them.
SPREAD = ("--dist", "loadfile", "--no-loadscope-reorder")
# What the tests have started ends within this after Ctrl-C.
END_SECONDS = 30.0
# A test's tier is its folder: `end_to_end` and `exhaustive`, anywhere under tests/, or neither.
TIERS = {
    "commit": ("--ignore-glob=*/end_to_end/*",),
    "all": (),
    "exhaustive": ("-k", "exhaustive", "-o", "norecursedirs=.* node_modules"),
}
EXAMPLES = """\
examples:
  python3 scripts/test.py                          the checks and every test
  python3 scripts/test.py --tier commit            without tests/*/end_to_end
  python3 scripts/test.py --tier exhaustive        every kill point, mutants, hazards: hours
  python3 scripts/test.py --no-checks tests/plan -k format

environment:
  TAPML_VENV               folder of the environment (default: .venv in the project)
  TAPML_REQUIRE_DEVICES=1  a test whose device is absent fails instead of being skipped
                           (set by CI=true)
"""


def main(arguments: list[str]) -> int:
    """Return pytest's exit status, or 1 if only a check failed."""
    parser = argparse.ArgumentParser(
        prog="scripts/test.py",
        description="Sets up the project's environment, then runs the checks and the tests.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--tier",
        choices=TIERS,
        default="all",
        help="which tests: those before a commit, all (the default, as in continuous "
        "integration), or the exhaustive ones, which the others leave out",
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--no-checks", action="store_true", help="run the tests alone")
    either.add_argument(
        "--checks-only", action="store_true", help="run ruff, mypy and the web checks alone"
    )
    options, to_pytest = parser.parse_known_args(arguments)

    signal.signal(signal.SIGTERM, _terminate)
    environment.enter(environment.ensure(EXTRAS))
    if not options.checks_only:
        debian.install_missing()
    # Packages come without bytecode, and the tests start hundreds of processes: without it each
    # would compile PyTorch again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if os.environ.get("CI", "").lower() in ("1", "true"):
        os.environ["TAPML_REQUIRE_DEVICES"] = "1"
    with Checks() as checks:
        if not options.no_checks:
            checks.start({**QUICK_CHECKS, **CHECKS})
        checks.finish(QUICK_CHECKS)
        to_pytest = [*TIERS[options.tier], *SPREAD, *(to_pytest or WORKERS)]
        status = 0 if options.checks_only else run_tests(["-m", "pytest", *to_pytest])
        checks.finish(CHECKS)
    if checks.failed:
        print(f"failed: {', '.join(checks.failed)} (their output is above)", flush=True)
    return status or (1 if checks.failed else 0)


class Checks:
    """Checks by name that all run at once, also beside the tests; leaving the block ends them.

    Attributes
    ----------
    failed
        Names of those that have failed so far.
    """

    def __init__(self) -> None:
        self.failed: list[str] = []
        self._running: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}

    def __enter__(self) -> "Checks":
        return self

    def start(self, checks: Mapping[str, Sequence[str]]) -> None:
        """Run Python with the arguments of each."""
        for name, arguments in checks.items():
            # A file, because nobody reads a pipe while the tests run.
            output = tempfile.TemporaryFile()  # noqa: SIM115 - __exit__ closes it
            # Tests have deadlines, checks have none.
            process = subprocess.Popen(
                ["nice", "-n", "19", sys.executable, *arguments],
                cwd=environment.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
            self._running[name] = process, output

    def finish(self, names: Iterable[str]) -> None:
        """Wait for those of these that were started, and show what they say unless they pass."""
        for name in names:
            if name not in self._running:
                continue
            process, output = self._running[name]
            status = process.wait()
            if status != 0:
                output.seek(0)
                print(output.read().decode("utf-8", "replace").rstrip())
            if status not in (0, NOT_RUN):
                self.failed.append(name)
            print(f"{name}: {VERDICTS.get(status, 'FAILED')}", flush=True)

    def __exit__(self, *_: object) -> None:
        # After Ctrl-C, of which they hear nothing: each is in a group with what it has started, so
        # that all of it is ended.
        for process, _output in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process, output in self._running.values():
            process.wait()
            output.close()


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM: Ctrl-C that reaches this process alone."""


def _terminate(*_: object) -> NoReturn:
    raise _TerminatedError


def run_tests(arguments: list[str]) -> int:
    """Run Python with these arguments; its exit status.

    Ctrl-C and SIGTERM end it as Ctrl-C does, so that nothing is left running.
    """
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=environment.ROOT, stdin=subprocess.DEVNULL
    ) as tests:
        try:
            return tests.wait()
        except KeyboardInterrupt as reason:
            if isinstance(reason, _TerminatedError):
                tests.send_signal(signal.SIGINT)
            try:
                tests.wait(END_SECONDS)
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                tests.kill()
            raise


if __name__ == "__main__":
    environment.run_script(main, "scripts/test.py")
