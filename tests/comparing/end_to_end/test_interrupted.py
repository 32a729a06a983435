"""Ctrl-C ends a comparison in one line, and with it the processes of all its backends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.comparing.small_cnn import make_images, write_cnn
from tests.isolate.processes import wait_until

_MARK = "TAPML_TEST_MARK"


def marked(mark: str) -> set[int]:
    """Processes with this mark in their environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"{_MARK}={mark}".encode() in variables:
            found.add(int(folder.name))
    return found


def test_ctrl_c_ends_the_comparison_and_its_backends(tmp_path: Path) -> None:
    model, data, mark = write_cnn(tmp_path), tmp_path / "data.npz", str(tmp_path)
    np.savez(data, x=make_images(20_000)["x"])
    words = ["compare", str(model), "--backends", "onnx-reference,onnxruntime", "--data", str(data)]
    with subprocess.Popen(
        [sys.executable, "-m", "tapml.cli.main", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {_MARK: mark},
    ) as command:
        # The server of the pool, and a backend of it.
        wait_until(lambda: len(marked(mark)) > 2)
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=60)
    assert command.returncode == 130, errors
    assert errors.splitlines()[-1] == "tapml: interrupted; no partial files are left"
    assert "Traceback" not in errors
    wait_until(lambda: not marked(mark))
