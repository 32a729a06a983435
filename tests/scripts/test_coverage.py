from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.coverage import PAPER, known_families, main, rows
from scripts.environment import ROOT
from tapml.models.families import families


def test_every_file_of_a_family_has_a_row() -> None:
    assert {row.family for row in rows()} >= set(known_families()) == set(families())


def test_the_names_of_the_paper_are_all_there_and_a_family_that_came_takes_its_sample() -> None:
    assert len({row.name for row in PAPER}) == 16
    for row in rows():
        assert bool(row.architecture) == (row.family not in known_families())


def test_equal_tiny_models_are_one_cell() -> None:
    keys = {row.name: row.key for row in rows()}
    assert keys["Llama-7B"] == keys["WizardMath-7B"] != keys["TinyLlama-1.1B"] == keys["`llama`"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--platforms", "abacus"], "no platform 'abacus': give some of "),
        (["--families", "llama,parrot"], "no family 'parrot': give some of "),
    ],
)
def test_a_name_that_is_not_known_is_one_line_and_status_2(
    arguments: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "models.md").read_bytes()
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith(f"scripts/coverage.py: {says}")
    assert (ROOT / "docs" / "models.md").read_bytes() == page


def test_another_machines_cells_have_files_of_their_own(tmp_path: Path) -> None:
    kept = (ROOT / "docs" / "models.json").read_bytes()
    cells, page = tmp_path / "gpu.json", tmp_path / "gpu.md"
    cell = {
        "row": "bert", "platform": "cuda", "device": "a GPU", "device_type": "gpu",
        "driver": "its driver", "cpu_seconds": 5.0, "operators": 13, "moved": 13, "stops": [],
    }  # fmt: skip
    cells.write_text(json.dumps({"cells": [cell]}), "utf-8")
    assert main(["--show", "--cells", str(cells), "--page", str(page)]) == 0
    text = page.read_text("utf-8")
    assert "- cuda: a GPU, its driver" in text
    assert "| ours | `bert` | moved 13, 5 s |" in text
    assert (ROOT / "docs" / "models.json").read_bytes() == kept
