"""An operator-wise verdict as JSON data for the journal and the report."""

from __future__ import annotations

from typing import Any

from tapml.oracles.probing import is_probe
from tapml.replaying.results import OperatorVerdict


def replay_data(verdict: OperatorVerdict) -> dict[str, Any]:
    """An operator-wise verdict as JSON data."""
    kernels = [r.timing.kernel for r in verdict.results if r.timing.kernel is not None]
    worst = verdict.worst
    carved = [result for result in verdict.results if not is_probe(result.test)]
    return {
        "status": verdict.status,
        "tests": len(carved),
        "passed": sum(result.verdict.status == "pass" for result in carved),
        "probes": len(verdict.results) - len(carved),
        "worst_ratio": finite_or_none(verdict.worst_ratio),
        "worst_test": worst.test if worst else "",
        "worst": worst.verdict.to_json() if worst else {},
        "suspects": list(verdict.accusations),
        "reason": verdict.reason,
        "cause": verdict.cause,
        # Each test runs twice, with two poison values.
        "kernel_ms": sum(kernels) / len(kernels) / 2 * 1e3 if kernels else None,
    }


def finite_or_none(value: float) -> float | None:
    """`value`, or None for NaN and infinity, which JSON does not have."""
    return value if abs(value) < float("inf") else None
