"""The calibration of verdicts: what it measures is real, and a limit that is too low is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scripts.calibration import measuring
from scripts.calibration.damage import lose, shift, swap
from scripts.calibration.measuring import ALLOWED, RIGHT, Row, measure
from scripts.calibration.summary import missed, shortcomings, table
from scripts.calibration.trials import Trial, normal, op, trials

ROW = Row("float32", "product", "matmul 48", RIGHT, "LLVM", 48, 5.0, 36.0, 144.0)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    chosen = [
        Trial(
            "matmul 96",
            ((24, 96), (96, 40)),
            op.matmul,
            normal,
            {"shift": shift(0), "lost last term": lose(0)},
        ),
        Trial("divide", ((30, 70),) * 2, op.divide, normal, {"swap": swap(0, 1)}, 2.5, 1.0),
    ]
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(measuring, "trials", lambda dtype: iter(chosen))
        return [row for dtype in ("float32", "bfloat16") for row in measure(dtype, [], 2)]


def test_right_kernels_are_far_below_their_limits_and_wrong_ones_above(rows: list[Row]) -> None:
    assert shortcomings(rows) == []
    assert {row.operator_class for row in rows} == {"product", "elementwise"}
    for row in rows:
        if row.kernel == RIGHT:
            assert row.share < 0.25 and row.probe_share == 0
        elif row.kernel != ALLOWED and row.dtype == "float32":
            assert row.share > 100


def test_what_the_ratio_misses_a_probe_finds(rows: list[Row]) -> None:
    assert list(missed(rows)) == []
    lost = [row for row in rows if row.kernel == "lost last term" and row.dtype == "bfloat16"]
    assert len(lost) == 2
    assert all(row.probes == 2 and row.probe_share > 1 for row in lost)


def test_what_opencl_allows_passes(rows: list[Row]) -> None:
    allowed = [row for row in rows if row.kernel == ALLOWED]
    assert {row.operator for row in allowed} == {"divide"}
    assert all(0 < row.share <= 1 for row in allowed)


def test_a_limit_near_a_right_kernel_is_named() -> None:
    (line,) = shortcomings([ROW, replace(ROW, ratio=12.0)])
    assert "float32 product" in line and "1.33 times as large" in line
    (line,) = shortcomings([replace(ROW, kernel=ALLOWED, ratio=40.0)])
    assert "as far off as OpenCL allows" in line
    (line,) = shortcomings([replace(ROW, probe_share=2.0)])
    assert "a probe accuses matmul 48" in line


def test_the_table_counts_wrong_kernels() -> None:
    wrong = replace(ROW, kernel="shift")
    counted = [
        ROW,
        replace(wrong, ratio=20.0, probe_share=9.0),
        replace(wrong, ratio=100.0),
        replace(wrong, ratio=900.0),
    ]
    assert "| 3 | 1 / 1 / 1 | 1 | 20 |" in table(counted)
    assert len(list(missed([*counted, replace(wrong, ratio=2.0)]))) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_trials_have_names_of_their_own(dtype: str) -> None:
    names = [trial.name for trial in trials(dtype)]
    assert len(set(names)) == len(names) > 40
