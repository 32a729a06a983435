"""Replay of carved tests over loopback, warm: time and overhead per test."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import numpy as np

from scripts.carved_model import open_carved
from tapml.compiler.twin import compile_twins
from tapml.oracles.oracle import Oracle
from tapml.replaying.results import ReplayResult
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session

MEDIAN_BAR_MS: Final = 5.0
OVERHEAD_BAR_MS: Final = 2.0
_PROBE_BYTES: Final = 16 << 20


def measure() -> list[dict[str, Any]]:
    """Replay the demo model's tests until they are warm, then once more, measured."""
    with open_carved(prompts=2, new_tokens=4) as carved:
        with Oracle(carved.suite.operators, compile_twins, Policy()) as oracle:
            carved.replay(carved.suite.tests(), oracle)
            results = carved.replay(carved.suite.tests(), oracle)
        rate = _bytes_per_second(carved.session)
    return _rows(results, rate)


def _bytes_per_second(session: Session) -> float:
    """Bandwidth of the link, both directions together."""
    data = np.zeros(_PROBE_BYTES, np.uint8).data
    buffer = session.allocate(_PROBE_BYTES)
    rates = []
    for _ in range(5):
        started = time.perf_counter()
        session.write(buffer, data)
        session.read(buffer, _PROBE_BYTES)
        rates.append(2 * _PROBE_BYTES / (time.perf_counter() - started))
    return statistics.median(rates)


def _rows(results: list[ReplayResult], rate: float) -> list[dict[str, Any]]:
    totals = [r.timing.reading + r.timing.device + r.timing.judging for r in results]
    overheads = [
        r.timing.device - (r.timing.kernel or 0.0) - r.timing.nbytes / rate for r in results
    ]
    beyond = "overhead beyond kernel and bytes"
    return [
        {
            "part": "replay",
            "name": name,
            "tests": len(results),
            "milliseconds": round(seconds * 1e3, 3),
            "at_most": bar,
            "met": seconds * 1e3 <= bar,
        }
        for name, seconds, bar in (
            ("one test, median", statistics.median(totals), MEDIAN_BAR_MS),
            (f"{beyond}, median", statistics.median(overheads), OVERHEAD_BAR_MS),
            (f"{beyond}, 95th percentile", float(np.quantile(overheads, 0.95)), OVERHEAD_BAR_MS),
        )
    ]
