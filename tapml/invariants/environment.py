"""Environment variables that say what a process records, and where."""

from __future__ import annotations

from typing import Final

FOLDER_VARIABLE: Final = "TAPML_INVARIANTS_TRACE"
"""The trace's folder."""
NEEDS_VARIABLE: Final = "TAPML_INVARIANTS_NEEDS"
"""A file with what is to be recorded; everything, if it is not set."""
EAGER_VARIABLE: Final = "TORCH_COMPILE_DISABLE"
"""PyTorch runs everything uncompiled if this is 1."""
