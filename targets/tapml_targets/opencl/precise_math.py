"""OpenCL C as precise as the device computes it: nothing fused, estimated or traded for speed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tapml_targets.library import CodeModule

_KINDS: Final = ("native", "half")
_FUNCTIONS: Final = (
    "cos", "exp", "exp2", "exp10", "log", "log2", "log10", "powr", "rsqrt", "sin", "sqrt", "tan",
)  # fmt: skip
_MACROS: Final = (
    *((f, f) for f in _FUNCTIONS), ("divide(x, y)", "((x) / (y))"), ("recip(x)", "(1 / (x))"),
)  # fmt: skip
_PROLOGUE: Final = "\n".join(
    (
        "#pragma OPENCL FP_CONTRACT OFF",
        # A driver may have them as macros already.
        *(f"#undef {kind}_{f.partition('(')[0]}" for kind in _KINDS for f, _ in _MACROS),
        *(f"#define {kind}_{f} {meaning}" for kind in _KINDS for f, meaning in _MACROS),
        "#line 1",
        "",
    )
)


def precise(module: CodeModule) -> CodeModule:
    """The same kernels without contraction, fast functions and the driver's fast math.

    Products and sums round separately, ``native_`` and ``half_`` functions become the full ones,
    and division and square root round correctly if the device offers that. Line numbers stay.
    """
    options = {*module.options, "exact-division"} - {"fast-math"}
    return replace(module, code=_PROLOGUE.encode() + module.code, options=tuple(sorted(options)))
