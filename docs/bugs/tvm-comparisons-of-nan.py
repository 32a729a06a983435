"""TVM makes others of comparisons with NaN: `x != y` on processors, and negated ones anywhere.

apache-tvm 0.27.0.post1: its code for LLVM compares by "ordered and unequal" (`fcmp one`), which is
false of NaN. Its simplifier takes `not x < y` for `y <= x` and `x - x` for zero, of floating-point
numbers as of integers, for every target. Found by tapml on PyTorch's own samples.
Needs apache-tvm and numpy.
"""

from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

x, y = (te.placeholder((3,), "float32", name) for name in "xy")
nan, infinite = float("nan"), float("inf")
given = np.array([1, nan, infinite], np.float32), np.array([2, 2, infinite], np.float32)
CASES = {
    "x != y": (tirx.NE, lambda x, y: x != y),
    "not x < y": (lambda x, y: tirx.Not(x < y), lambda x, y: ~(x < y)),
    "x - x": (lambda x, y: x - x, lambda x, y: x - x),
}
for name, (written, wanted) in CASES.items():
    with np.errstate(invalid="ignore"):
        expected = wanted(*given)  # type: ignore[no-untyped-call]
    # It is called at once, and TVM refuses a default argument.
    made = te.compute((3,), lambda i: written(x[i], y[i]), "made")  # noqa: B023
    function = te.create_prim_func([x, y, made])
    built: Any = tvm.compile(function, target="llvm")
    out = tvm.runtime.tensor(np.zeros_like(expected))
    built(*map(tvm.runtime.tensor, given), out)
    print(f"{name}: NumPy {expected.tolist()}, TVM {out.numpy().tolist()}")
