"""Ctrl-C at any time: one line, no traceback, exit code 130."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tapml.cli import start
from tapml_rpc.client import connect

# Where Python itself has come so far that our first line runs; an interrupt before it is Python's.
COMMAND = """
import sys
from tapml.cli.start import main
print("begun", flush=True)
sys.exit(main())
"""


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.5])
def test_an_early_interrupt_is_one_line(tmp_path: Path, delay: float) -> None:
    """While Python imports what parses the command line, and what the command itself needs."""
    arguments = ("offload", "--session", str(tmp_path / "session"), "--model", "nowhere-llama")
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        env={**os.environ, "TAPML_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    said = [line for line in errors.splitlines() if line.startswith("tapml")]
    assert "Traceback" not in errors
    # It may have ended by itself before the signal came, or have said so and be on its way out.
    assert process.returncode in (130, 2, -signal.SIGINT)
    assert len(said) == 1
    assert ("interrupted" in said[0]) == (process.returncode == 130)


def test_a_server_serves_where_its_caller_has_closed_what_it_prints_to() -> None:
    code = "import sys; from tapml.cli.start import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "rpc", "serve", "--device", "cpu:0"]
    server = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", *words], stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        with connect(json.loads(server.stdout.readline())["address"]) as session:
            session.fence()
        # What is printed reaches no other file, such as a connection.
        streams = [str(Path(f"/proc/{server.pid}/fd/{each}").readlink()) for each in (0, 2)]
        assert streams == [os.devnull, os.devnull]
    finally:
        server.terminate()
        server.communicate()
    assert server.returncode == 0


def test_a_command_that_is_done_does_not_go_through_all_objects_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("tapml.cli.main.main", lambda: 3)
    try:
        assert start.main() == 3
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        signal.signal(signal.SIGINT, before)


# Python drops the interrupt that comes while the finalizer runs.
FINALIZER = """
import os, signal, sys, time
import tapml.cli.main
from tapml.cli.start import main

class Slow:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

def run():
    Slow()
    time.sleep(60)
    return 0

tapml.cli.main.main = run
sys.exit(main())
"""


def test_an_interrupt_within_a_finalizer_is_not_lost() -> None:
    process = subprocess.run(
        [sys.executable, "-c", FINALIZER], capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.returncode, process.stderr) == (130, "tapml: interrupted\n")


def test_a_command_imports_no_other_command() -> None:
    code = (
        "import sys; from tapml.cli.main import make_parser; make_parser('invariants')\n"
        "print(*(name for name in sys.modules if name.startswith('tapml.cli.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert "tapml.cli.invariants" in done.stdout.split()
    assert "tapml.cli.offload" not in done.stdout.split()


def test_the_package_is_the_command() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tapml", "compare", "absent.onnx", "--data", "x.npz"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 2
    assert found.stderr.startswith("tapml: there is no absent.onnx")
