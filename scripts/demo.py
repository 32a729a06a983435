"""Set up the project's environment, then move the shipped model to OpenCL.

`python3 scripts/demo.py` needs no root and asks nothing. Arguments go to `tapml offload`.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

# The project's root instead of this folder, whose test.py would hide the standard library's.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.python_version import require_python

require_python()

from scripts import environment

EXTRAS = ("host", "opencl")
SHIPPED_MODEL = "pydoc-llama"
# -P: no file in the current folder shadows a module.
TAPML = (sys.executable, "-P", "-m", "tapml.cli.main")
EXAMPLES = """\
examples:
  python3 scripts/demo.py                            the shipped model to OpenCL
  python3 scripts/demo.py --model ~/models/my-llama  a local Llama folder instead
  python3 scripts/demo.py --session my-session       in another folder; repeat to resume there

environment:
  TAPML_VENV   folder of the environment (default: .venv in the project)

The session is in ./tapml-demo and restarts with every run. The exit code is that of
`tapml offload`: 0 pass, 1 mismatch, 2 input or environment, 3 no such device, 4 device lost.
"""


def main(arguments: list[str]) -> int:
    """Return the exit code of `tapml offload`."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo.py",
        description="Sets up the project's environment, then runs `tapml offload` with the shipped "
        "model. Other arguments are those of `tapml offload`.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", default=SHIPPED_MODEL, help="shipped model or local folder")
    parser.add_argument("--target", default="opencl", help="where to (default: opencl)")
    parser.add_argument("--session", type=Path, help="folder of the session")
    options, others = parser.parse_known_args(arguments)

    environment.enter(environment.ensure(EXTRAS))
    if options.target == "opencl" and not has_opencl_device():
        print("no OpenCL device answers here; a driver for the CPU is installed", file=sys.stderr)
        environment.ensure(["opencl-cpu"])

    if options.model == SHIPPED_MODEL:
        # The model is tiny: on a busy machine two threads that wait for each other take twice as
        # long.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    session = options.session or Path("tapml-demo")
    again = [] if options.session else ["--restart"]
    started = time.monotonic()
    status = run(
        *TAPML, "offload", "--model", options.model, "--target", options.target,
        "--session", str(session), *again, *others,
    )  # fmt: skip
    if status in (0, 1):
        print(f"\nmigration: {time.monotonic() - started:.0f} s", file=sys.stderr)
        print(f"report: {(session / 'report.html').resolve().as_uri()}", file=sys.stderr)
    elif status == 130:
        print(f"continue with: python3 {sys.argv[0]} --session {session}", file=sys.stderr)
    return status


def has_opencl_device() -> bool:
    """Whether a driver lists a device, not a simulator, that has built and run a kernel."""
    listing = subprocess.run(
        [*TAPML, "devices", "--platform", "opencl", "--json"],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    return listing.returncode == 0


def run(*command: str) -> int:
    """Run a command to its end, however often Ctrl-C is pressed: it ends by itself and cleanly."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


if __name__ == "__main__":
    environment.run_script(main, "scripts/demo.py")
