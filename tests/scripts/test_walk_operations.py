"""What a walk over PyTorch's functions found is counted by the gravest word of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.walk_operations import main


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
