"""The walk over PyTorch's functions as a study that is interrupted and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from scripts.environment import ROOT
from tapml_targets.errors import EXIT_TERMINATED


def test_an_interrupted_walk_ends_at_once_and_blames_no_operation(tmp_path: Path) -> None:
    kept = tmp_path / "walk.json"
    code = f"""
import sys
from scripts import walk_operations as script
jobs = "tests.scripts.stand_in_jobs"
script._NAMES, script._OPEN, script._WALK = (f"{{jobs}}:{{n}}" for n in ("names", "opened", "walk"))
script._ENVIRONMENT = script.Environment(preload=(jobs,))
sys.exit(script.main(["--file", {str(kept)!r}, "--dtypes", "float32"]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as walk:  # fmt: skip
        assert walk.stdout is not None
        assert walk.stdout.readline() == "quick float32: pass\n"
        while not kept.exists():
            time.sleep(0.01)
        walk.terminate()
        said, errors = walk.communicate(timeout=30)
    assert walk.returncode == EXIT_TERMINATED, errors
    assert errors == "terminated; run it again to continue\n"
    assert said == ""
    assert list(json.loads(kept.read_text("utf-8"))) == ["quick float32"]
