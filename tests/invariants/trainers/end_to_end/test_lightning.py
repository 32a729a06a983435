"""A real, tiny Lightning Trainer under the callback; in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "lightning_runs.py"
pytestmark = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in ("lightning", "pytorch_lightning")),
    reason="Lightning is not installed",
)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script found. Lightning changes warnings and logging of its process."""
    folder = tmp_path_factory.mktemp("lightning")
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_what_a_trainer_does_is_learned(told: dict[str, Any]) -> None:
    assert {"OptimizerParameters", "APISequence", "PlannedSteps"} <= set(told["relations"])


def test_a_watched_trainer_gives_the_same_losses_and_breaks_nothing(told: dict[str, Any]) -> None:
    assert told["watched"] == told["plain"]
    assert told["clean"] == {"violated": 0, "steps": 8}


def test_epochs_that_the_trainer_limits_are_no_violation(told: dict[str, Any]) -> None:
    assert told["limited"] == 0


def test_stop_leaves_the_trainer_in_the_step_of_the_error(told: dict[str, Any]) -> None:
    assert "step 2: " in told["stopped"]
    assert told["hooks left"] is False
