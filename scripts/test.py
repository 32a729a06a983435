"""Set up the project's environment, then run the checks and the tests.

`python3 scripts/test.py` runs everything, here and in continuous integration. Unknown arguments go
to pytest.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

# The project's root instead of this folder, whose test.py would hide the standard library's.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.python_version import require_python

require_python()

from scripts import debian, environment

EXTRAS = (
    "bench", "check", "compare", "cpu", "dask", "host", "invariants", "metal", "models", "opencl",
    "opencl-cpu", "openvino", "qr", "simulator", "test", "torchrec", "vulkan", "webgpu",
)  # fmt: skip
CHECKS = (
    ("ruff check", ["-m", "ruff", "check"]),
    ("ruff format", ["-m", "ruff", "format", "--check"]),
    ("mypy", ["-m", "mypy"]),
    ("web", ["-m", "scripts.web_checks"]),
)
# Tests often wait for processes they started: on two cores four workers leave none idle. A file's
# tests share fixtures. Files with few tests may take longest: tests/conftest.py orders them.
SPREAD = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
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
        description="Sets up the project's environment, then runs ruff, mypy and pytest.",
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
    parser.add_argument("--no-checks", action="store_true", help="leave out ruff and mypy")
    parser.add_argument("--checks-only", action="store_true", help="run ruff and mypy alone")
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
    failed = [] if options.no_checks else run_checks()
    if options.checks_only:
        return 1 if failed else 0
    to_pytest = [*TIERS[options.tier], *(to_pytest or SPREAD)]
    status = run_tests(["-m", "pytest", *to_pytest])
    if failed:
        print(f"failed before the tests: {', '.join(failed)} (their output is above)", flush=True)
    return status or (1 if failed else 0)


def run_checks() -> list[str]:
    """Run all checks at once, show what the failing ones say, and return their names."""
    started = time.monotonic()
    running = [
        (
            name,
            subprocess.Popen(
                [sys.executable, *arguments],
                cwd=environment.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ),
        )
        for name, arguments in CHECKS
    ]
    failed = []
    try:
        for name, process in running:
            output, _ = process.communicate()
            verdict = "passed" if process.returncode == 0 else "FAILED"
            if process.returncode != 0:
                failed.append(name)
                print(output.rstrip())
            seconds = time.monotonic() - started
            print(f"{name}: {verdict}, {seconds:.1f} s after the checks began", flush=True)
    finally:
        # After Ctrl-C. A terminal sends it to them as well, and `kill` to this process alone.
        for _, process in running:
            process.terminate()
            process.wait()
    return failed


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
