"""A repro folder for an operator that failed: everything needed to see it fail again."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tapml.carve.carved_test import CarvedTest
from tapml.carve.replay import ReplayResult
from tapml.graph.plan import Operator
from tapml.offload.workbench import Workbench
from tapml_targets.library import Library

REPRO: Final = "repro"


def write_failure(
    bench: Workbench,
    operator: Operator,
    library: Library | None,
    test: CarvedTest | None,
    result: ReplayResult | None,
) -> Path | None:
    """Write ``repro/<operator>``; None where there is nothing to replay (no kernel, no test)."""
    return None
