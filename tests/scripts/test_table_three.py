"""The paper's table III from a session's phases, and the shapes that it is measured on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.table_three import TABLE, main, rows, shape_of


def test_the_seven_rows_of_the_paper_are_summed_from_phases() -> None:
    phases = [
        {"name": "compile kernels", "seconds": 6.0},
        {"name": "load weights", "seconds": 1.0},
        {"name": "import model", "seconds": 2.0},
        {"name": "compile reference", "seconds": 0.5},
        {"name": "operator validation", "seconds": 5.0},
        {"name": "open device", "seconds": 99.0},
    ]
    found = rows(phases, operators=10)
    assert [each["seconds"] for each in found] == [6.0, 1.0, 0.0, 2.5, 0.0, 0.0, 0.5]
    assert [each["once"] for each in found] == [False, False, False, True, True, True, False]
    assert [each.paper for each in TABLE] == [40.1, 1.6, 4.6, 50.8, 1.6, 5.2, 0.1]
    assert sum(each["share"] for each in found) == pytest.approx(1.0)


def test_a_scaled_shape_keeps_the_size_of_its_heads(capsys: pytest.CaptureFixture[str]) -> None:
    shape = shape_of(16, 2)
    assert shape["hidden_size"] == shape["num_attention_heads"] * shape["head_dim"] == 256
    assert (shape["intermediate_size"], shape["num_hidden_layers"]) == (688, 2)
    assert main(["--scale", "3"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "scripts/table_three.py: --scale 3: expected a divisor of 32, the number of heads"
    ]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"target": "webgpu"}, "target (webgpu, not opencl)"),
        ({"int4": True}, "int4 (True, not False)"),
        ({"shape": {}}, "shape"),
    ],
)
def test_a_folder_with_steps_of_another_run_is_refused(
    changed: dict[str, object], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {"shape": shape_of(32, 1), "target": "opencl", "int4": False, "steps": []} | changed
    (tmp_path / "steps.json").write_text(json.dumps(kept))
    given = ["--tests", "--scale", "32", "--layers", "1", "--folder", str(tmp_path)]
    assert main(given) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"scripts/table_three.py: {tmp_path} has another {told}: give an empty folder"
    ]
