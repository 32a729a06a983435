"""The walk over PyTorch's functions: how it is interrupted, and how it counts what it found."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.environment import ROOT
from scripts.walk_operations import main
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


def _kept(folder: Path, *said: str) -> str:
    samples: list[dict[str, Any]] = [
        {"sample": f"({place})", "found": {"cpu": "pass", "opencl:0": each}}
        for place, each in enumerate(said)
    ]
    file = folder / "walk.json"
    file.write_text(json.dumps({"add float32": {"devices": ["opencl:0"], "samples": samples}}))
    return str(file)


def test_one_wrong_sample_makes_a_function_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = _kept(tmp_path, "pass", "wrong: 1 of 4 differ", "refused: by name")
    assert main(["--file", kept, "--show", "wrong"]) == 1
    line, counts = capsys.readouterr().out.splitlines()
    assert line == "add float32 (1) on opencl:0: wrong: 1 of 4 differ"
    assert counts == "1 wrong"


def test_what_is_refused_is_not_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = _kept(tmp_path, "refused: by name")
    assert main(["--file", kept, "--show", "wrong", "broken"]) == 0
    assert capsys.readouterr().out == "1 refused\n"


def test_a_dtype_that_pytorch_lacks_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--file", _kept(tmp_path), "--dtypes", "float33"])
    assert ended.value.code == 2
    assert "invalid choice: 'float33'" in capsys.readouterr().err
