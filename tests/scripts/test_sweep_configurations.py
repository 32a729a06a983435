"""The table of public configurations is whole, and a shape is validated once, whoever has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts import sweep_configurations
from scripts.configuration_shapes import CONFIGURATIONS, Shape, configurations, shapes_of
from scripts.sweep_configurations import BEGIN, END, main
from tapml_targets.errors import InputError
from tests.conftest import RequireDevice


def test_the_table_has_82_configurations_with_their_sources() -> None:
    rows = configurations()
    assert len({row.name for row in rows}) == len(rows) == 82
    assert all(row.source and row.layers > 0 for row in rows)
    llama = next(row for row in rows if row.name == "llama2_7b")
    assert {str(shape) for shape in llama.shapes()} == {
        "product 4096 x 4096",
        "product 4096 x 11008",
        "product 11008 x 4096",
        "product 4096 x 32000",
        "embedding 32000 x 4096",
        "rms norm 4096",
        "gated silu 11008",
        "attention 32 x 32 x 128",
    }


def test_every_operator_of_the_table_is_a_function_of_torch() -> None:
    shapes = shapes_of(configurations())
    assert len(next(iter(shapes.values()))) == max(map(len, shapes.values()))
    one_of_each = {
        shape.operator: shape for shape in sorted(shapes, key=lambda each: -each.weight_bytes)
    }
    for shape in one_of_each.values():
        if shape.weight_bytes < 1 << 22:
            operator = shape.as_operator()
            arrays = operator.draw(5, "float32")
            import torch

            found = operator.function(*(torch.from_numpy(each) for each in arrays))
            assert torch.isfinite(found).all(), shape
    shared = shapes[Shape("product", (4096, 4096))]
    assert {"llama2_7b", "mistral_7b"} <= set(shared)


def test_shapes_are_replayed_and_the_page_says_what_was_not(
    require_device: RequireDevice,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    device = require_device("opencl", vendor="Portable Computing Language")[0]
    sizes: dict[str, Any] = {"hidden": 24, "inner": 24, "heads": 4, "kv_heads": 4, "head_size": 6}
    small = replace(configurations()[0], name="small", vocabulary=600, **sizes)
    rows = [small, replace(small, name="other", vocabulary=900)]
    monkeypatch.setattr(sweep_configurations, "configurations", lambda: rows)
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    command = [
        "--devices", f"opencl:{device.index}", "--largest", "60K", "--folder", str(tmp_path / "f"),
        "--page", str(page), "--operators", "product *", "--cells", str(tmp_path / "cells.json"),
    ]  # fmt: skip
    assert main(command) == 0, capsys.readouterr()
    text = page.read_text("utf-8")
    # The page has every shape, whatever was asked for.
    assert text.startswith(f"# Page\n{BEGIN}\n\n2 configurations have 8 distinct operator shapes")
    assert "old" not in text
    assert text.endswith(f"{END}\nafter\n")
    assert "| small | 24 | 24 | 32 | 4 | 6 | 600 |" in text
    # Only products were asked for: of its six shapes these two.
    assert "| 2 of 6 |" in text
    assert "product 24 x 900" in text.partition("Above the bound: ")[2].partition("\n")[0]


def test_a_row_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    lines = CONFIGURATIONS.read_text("utf-8").splitlines()[:2]
    path.write_text("\n".join(lines).replace("4096", "many"), "utf-8")
    with pytest.raises(InputError, match="row 'llama2_7b': invalid literal"):
        configurations(path)
