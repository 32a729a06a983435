"""The cpu platform."""

from __future__ import annotations

from typing import Final

# The form of an operator that it compiles: sort and scan exist as a serial loop and as kernels.
FUNCTION_KIND: Final = "cpu"
