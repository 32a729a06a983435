"""Set up the project's environment, then run the checks and the tests.

`python3 scripts/test.py` is all there is to do, here and in continuous integration. Arguments that
are not this script's own go to pytest.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

# The project's root instead of this folder, whose test.py would hide the standard library's.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.python_version import require_python  # noqa: E402

require_python()

from scripts import environment  # noqa: E402
from scripts.environment import debian, location  # noqa: E402

EXTRAS = ("bench", "check", "cpu", "host", "opencl", "opencl-cpu", "qr", "test", "webgpu")
CHECKS = (
    ("ruff check", ["-m", "ruff", "check"]),
    ("ruff format", ["-m", "ruff", "format", "--check"]),
    ("mypy", ["-m", "mypy"]),
    ("web", ["-m", "scripts.web_checks"]),
)
# Much of a test is waiting for processes it started: three at a time on two cores took 19 minutes
# where two took 24. A file's tests share what its fixtures made.
# Files with few tests may take longest: their order is that of tests/conftest.py.
WHOLE_SUITE = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
EXAMPLES = """\
examples:
  python3 scripts/test.py                          the checks and every test
  python3 scripts/test.py --fast                   without the tests marked slow
  python3 scripts/test.py --no-checks tests/graph -k plan

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
    parser.add_argument("--fast", action="store_true", help="leave out the tests marked slow")
    parser.add_argument("--no-checks", action="store_true", help="leave out ruff and mypy")
    parser.add_argument("--checks-only", action="store_true", help="run ruff and mypy alone")
    options, to_pytest = parser.parse_known_args(arguments)

    if "TAPML_SETUP_SECONDS" not in os.environ and not options.checks_only:
        debian.install_missing()
    environment.enter(environment.ensure(EXTRAS), Path(__file__).resolve(), arguments)
    setup = environment.setup_seconds()
    os.environ.pop("TAPML_SETUP_SECONDS", None)
    # Packages come without bytecode, and the tests start hundreds of processes: without it each
    # would compile PyTorch anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.update(tool_variables())
    if setup.downloading + setup.unpacking > 0:
        print(
            f"set-up: downloading {setup.downloading:.0f} s, unpacking {setup.unpacking:.0f} s",
            flush=True,
        )
    failed = [] if options.no_checks else run_checks()
    if options.checks_only:
        return 1 if failed else 0
    if not to_pytest:
        to_pytest = [*WHOLE_SUITE]
    if options.fast:
        to_pytest = ["-m", "not slow", *to_pytest]
    status = subprocess.call(
        [sys.executable, "-m", "pytest", *to_pytest],
        cwd=environment.ROOT,
        stdin=subprocess.DEVNULL,
    )
    if failed:
        print(f"failed before the tests: {', '.join(failed)} (their output is above)", flush=True)
    return status or (1 if failed else 0)


def tool_variables() -> dict[str, str]:
    """Return the environment variables that the tools and the tests run under."""
    variables = {}
    if os.environ.get("CI", "").lower() in ("1", "true"):
        variables["TAPML_REQUIRE_DEVICES"] = "1"
    if not location.is_writable(environment.ROOT):
        cache = location.cache_folder(os.environ)
        variables["RUFF_CACHE_DIR"] = str(cache / "ruff")
        variables["MYPY_CACHE_DIR"] = str(cache / "mypy")
        variables["HYPOTHESIS_STORAGE_DIRECTORY"] = str(cache / "hypothesis")
        variables["PYTEST_ADDOPTS"] = f"-o cache_dir={cache / 'pytest'}"
    return variables


def run_checks() -> list[str]:
    """Run every check, show what the failing ones say, and return their names."""
    failed = []
    for name, arguments in CHECKS:
        started = time.monotonic()
        result = subprocess.run(
            [sys.executable, *arguments],
            check=False,
            cwd=environment.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        verdict = "passed" if result.returncode == 0 else "FAILED"
        if result.returncode != 0:
            failed.append(name)
            print(result.stdout.rstrip())
        print(f"{name}: {verdict} ({time.monotonic() - started:.1f} s)", flush=True)
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except environment.SetupError as error:
        print(f"scripts/test.py: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; an environment that is not finished is never used", file=sys.stderr)
        sys.exit(130)
