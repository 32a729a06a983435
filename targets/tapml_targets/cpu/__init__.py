"""The cpu platform."""

from __future__ import annotations

from typing import Final

# Which form of an operator it compiles, where sort and scan come in two: a serial loop or kernels.
FUNCTION_KIND: Final = "cpu"
