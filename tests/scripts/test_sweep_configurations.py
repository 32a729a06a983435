"""The table of public configurations is whole, and a shape is validated once, whoever has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scripts import sweep_configurations
from scripts.configuration_shapes import (
    CONFIGURATIONS,
    Arrays,
    Shape,
    configurations,
    numbers,
    shapes_of,
)
from scripts.oracle_in_parts import OracleInParts, imported
from scripts.sweep_configurations import BEGIN, END, main
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.execute.executor import Executor
from tapml.isolate.environment import Environment
from tapml.oracles.oracle import Oracle
from tapml.validation.observed import observe
from tapml.verdicts.policy import Policy
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
    assert {"product", "embedding", "rms norm", "attention", "gated silu"} <= set(one_of_each)
    for shape in one_of_each.values():
        if shape.weight_bytes < 1 << 22:
            assert torch.isfinite(torch.from_numpy(_output(shape)[2][0])).all(), shape
    shared = shapes[Shape("product", (4096, 4096))]
    assert {"llama2_7b", "mistral_7b"} <= set(shared)


def test_places_in_a_table_reach_its_last_row() -> None:
    (places,) = Shape("embedding", (300, 4)).draw_inputs()
    assert set(places) >= {0, 299}


def test_numbers_of_rows_and_operands_differ() -> None:
    weight = numbers((1500, 1000), 0)
    assert len(np.unique(weight[:, 0])) > 1400
    assert not np.array_equal(numbers((8,), 0), numbers((8,), 1))
    assert abs(weight.mean()) < 0.01
    assert abs(weight.std() - 1) < 0.01


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        (Shape("product", (24, 60)), 3),
        (Shape("product", (24, 61)), 3),
        (Shape("embedding", (61, 24)), 1),
        (Shape("rms norm", (24,)), 1),
    ],
)
def test_parts_of_a_shape_compute_what_it_computes(shape: Shape, count: int) -> None:
    inputs, weights, outputs = _output(shape)
    parts = list(shape.parts(inputs, weights, outputs, 4 * 24 * 24))
    assert len(parts) == count
    for part, given, rows, output in parts:
        found = part.function(*map(torch.from_numpy, (*given, *rows)))
        assert np.allclose(found.numpy(), output[0], rtol=0, atol=1e-5)
    joined = np.concatenate([output[0] for *_, output in parts], axis=-1)
    assert np.array_equal(joined, outputs[0])


@pytest.mark.parametrize("shape", [Shape("product", (48, 200)), Shape("embedding", (200, 48))])
def test_an_oracle_in_parts_expects_what_the_whole_one_expects(shape: Shape) -> None:
    inputs, weights, _ = _output(shape)
    mod = imported(shape, inputs, weights)
    executor = Executor(mod.plan, mod.weights, compile_reference(mod.plan))
    tests, _ = observe(executor, mod.entry, dict(zip(mod.graph.inputs, inputs, strict=True)))
    operators, policy = mod.plan.operators, Policy()
    with (
        Oracle(operators, compile_twins, policy) as whole,
        OracleInParts(shape, operators, 4 * 48 * 64, policy, threads=2) as parts,
    ):
        for test in tests:
            for want, found in (
                (whole.expect(test), parts.expect(test)),
                (whole.appeal(test), parts.appeal(test)),
            ):
                assert (found.terms, found.repeats) == (want.terms, want.repeats)
                (one,), (other,) = want.outputs, found.outputs
                assert np.allclose(other.values, one.values, rtol=1e-12, atol=1e-12)
                # Perturbations are others, so that only their size is the same.
                assert np.median(other.sensitivity) == pytest.approx(
                    np.median(one.sensitivity), rel=0.4
                )
                assert want.independent is not None and found.independent is not None
                assert found.independent.agrees == want.independent.agrees


def _output(shape: Shape) -> tuple[Arrays, Arrays, Arrays]:
    """Inputs, weights and outputs of a shape."""
    inputs, weights = shape.draw_inputs(), shape.draw_weights()
    found = shape.function(*map(torch.from_numpy, (*inputs, *weights)))
    return inputs, weights, [found.numpy()]


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
        "--devices", f"opencl:{device.index}", "--largest", "60K", "--page", str(page),
        "--operators", "product *", "--cells", str(tmp_path / "cells.json"),
        "--others", str(tmp_path / "others.json"),
    ]  # fmt: skip
    with monkeypatch.context() as hurried:
        hurried.setattr(sweep_configurations, "DEADLINE_SECONDS", 0.01)
        assert main([*command, "--operators", "product 24 x 24"]) == 1
    assert "not run (" in capsys.readouterr().err
    assert main(command) == 0, capsys.readouterr()
    text = page.read_text("utf-8")
    # The page has every shape, whatever was asked for.
    assert text.startswith(f"# Page\n{BEGIN}\n\n2 configurations have 8 distinct operator shapes")
    assert "old" not in text
    assert text.endswith(f"{END}\nafter\n")
    assert "| small | 24 | 24 | 32 | 4 | 6 | 600 |" in text
    # Only products were asked for: of its six shapes these two.
    assert "| 2 of 6 |" in text
    assert "On no device: 6," in text
    assert "product 24 x 900" in text.partition("On no device: ")[2].partition("\n")[0]
    # Another machine's cells are shown beside these, and need not be made again.
    (tmp_path / "cells.json").rename(tmp_path / "others.json")
    assert main([*command, "--show"]) == 0
    text = page.read_text("utf-8")
    assert f"opencl:{device.index} of {device.name}: 2 pass" in text
    assert "2 pass on a device" in text


def test_a_shape_whose_process_dies_is_no_success(
    require_device: RequireDevice,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    device = require_device("opencl", vendor="Portable Computing Language")[0]
    monkeypatch.setattr(sweep_configurations, "configurations", lambda: configurations()[:1])
    monkeypatch.setattr(sweep_configurations, "TRY", "tests.scripts.stand_in_jobs:die")
    # Nothing is loaded for a job that does nothing.
    monkeypatch.setattr(sweep_configurations, "Environment", lambda **_: Environment())
    command = [
        "--devices", f"opencl:{device.index}", "--operators", "rms norm *",
        "--page", str(tmp_path / "page"), "--cells", str(tmp_path / "cells.json"),
        "--others", str(tmp_path / "others.json"),
    ]  # fmt: skip
    assert main(command) == 1
    assert f"opencl:{device.index} not run" in capsys.readouterr().err


def test_a_row_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    lines = CONFIGURATIONS.read_text("utf-8").splitlines()[:2]
    path.write_text("\n".join(lines).replace("4096", "many"), "utf-8")
    with pytest.raises(InputError, match="row 'llama2_7b': invalid literal"):
        configurations(path)
