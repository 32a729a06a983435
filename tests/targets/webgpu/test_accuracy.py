"""The errors that WGSL allows, as its table has them for f32 and f16."""

from __future__ import annotations

import numpy as np
import pytest

from tapml_targets.webgpu.accuracy import allowed_ulp

# "Accuracy of concrete floating point expressions": exp is 3 + 2 |x| ULP in f32 and 1 + 2 |x| in
# f16; log is 3 ULP outside [0.5, 2], and an absolute error of 2^-21 and 2^-7 within.
ROWS = {
    ("divide", "float32", 4.0): 2.5,
    ("divide", "float16", 4.0): 2.5,
    ("square_root", "float32", 4.0): 4.5,
    ("square_root", "float16", 4.0): 4.5,
    ("exp", "float32", 4.0): 11.0,
    ("exp", "float16", 4.0): 9.0,
    ("exp", "float16", -4.0): 9.0,
    ("log", "float32", 4.0): 3.0,
    ("log", "float16", 4.0): 3.0,
    # log(1.75) = 0.56 has an ulp of 2^-24 in f32 and of 2^-11 in f16.
    ("log", "float32", 1.75): 8.0,
    ("log", "float16", 1.75): 16.0,
}


@pytest.mark.parametrize(("row", "allowed"), ROWS.items(), ids=lambda each: str(each)[:40])
def test_a_row_of_the_table(row: tuple[str, str, float], allowed: float) -> None:
    function, dtype, x = row
    assert np.ravel(allowed_ulp(function, dtype, np.array([x])))[0] == allowed


def test_tanh_may_be_off_by_the_worse_of_an_absolute_error_and_what_it_inherits() -> None:
    x = np.array([0.25, 4.0, 16.0])
    single = np.spacing(np.tanh(x).astype(np.float32)).astype(np.float64)
    half = np.spacing(np.tanh(x).astype(np.float16)).astype(np.float64)
    assert np.allclose(allowed_ulp("tanh", "float32", x) * single, 1e-5)
    assert np.all(allowed_ulp("tanh", "float16", x) * half > 1e-3), "half has no 1e-5 near 1"
