"""What TVM prints is one module per kernel, in a form that every compiler of WGSL takes."""

from __future__ import annotations

from tapml_targets.webgpu.codegen.text import split_kernels


def test_the_largest_float_is_written_as_one() -> None:
    printed = "// Function: k\nfn k() { let least = -3.40282347e+38f; }\n"
    (text,) = split_kernels(printed).values()
    literal = text.partition("= ")[2].partition("f;")[0]
    # As a decimal number it must not be beyond the largest float, which is this one in binary64.
    assert float(literal) == -3.4028234663852886e38
