"""The opencl platform."""

from __future__ import annotations

from typing import Final

# Which form of an operator it compiles, where sort and scan come in two: a serial loop or kernels.
# TVM's kernels for a scan have a race; the serial form says what they mean.
FUNCTION_KIND: Final = "cpu"
