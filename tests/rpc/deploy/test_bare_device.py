"""The device end works where numpy and pyzmq are not installed: boards that have no wheels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "rpc" / "golden" / "messages.json"


@pytest.fixture(scope="module")
def bare() -> Any:
    """What a process without the two packages reports."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.rpc.deploy.bare_device", str(GOLDEN)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_protocol_library_supervisor_and_websocket_need_neither_numpy_nor_pyzmq(bare: Any) -> None:
    assert bare["lacking"] == {}
    assert bare["loaded"] == []


def test_a_golden_batch_is_answered_with_the_golden_answer(bare: Any) -> None:
    messages = json.loads(GOLDEN.read_text("utf-8"))["messages"]
    expected = next(each for each in messages if each["name"] == "answer with two reads")
    assert bare["answer"] == expected["header"]
    assert bare["chunk"] == expected["chunk"]
    assert bare["held"] == 0
