"""Names of files in a model's folder."""

from __future__ import annotations

from typing import Final

CONFIG: Final = "config.json"
PROGRAM: Final = "program.json"
"""A recorded module's graph (:mod:`tapml.models.recorded_module`)."""
