"""Cost of the float64 twin and the sensitivity per test, cold and cached, against the replay."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from scripts.carved_model import open_carved
from tapml.compiler.twin import compile_twins
from tapml.oracles.expectation_store import store_of
from tapml.oracles.oracle import Oracle
from tapml.suite.carved_test import CarvedTest
from tapml.verdicts.policy import Policy

TWIN_BAR: Final = 5.0
_TESTS: Final = 600
_PROMPTS: Final = 4
_NEW_TOKENS: Final = 12


def measure() -> list[dict[str, Any]]:
    """Twin and sensitivity per test, against the replay of the same tests."""
    with open_carved(_PROMPTS, _NEW_TOKENS) as carved:
        suite, policy = carved.suite, Policy()
        # Spread evenly over the suite: every number has the same mix.
        tests = list(islice(suite.tests(), 0, None, max(1, suite.count() // _TESTS)))[:_TESTS]
        twins = compile_twins(suite.operators.values())
        with Oracle(suite.operators, lambda _: twins, policy, cache=store_of(suite.path)) as oracle:
            # Kernels and weights are on the device, and expectations in the cache, from here on.
            carved.replay(tests, oracle)
            results = carved.replay(tests, oracle)
            with Oracle(suite.operators, lambda _: twins, policy) as fresh:
                computed = _expect(tests, fresh)
            cached = _expect(tests, oracle)
    return _rows([r.timing.reading + r.timing.device for r in results], computed, cached)


def _expect(tests: Iterable[CarvedTest], oracle: Oracle) -> list[float]:
    times = []
    for test in tests:
        started = time.perf_counter()
        oracle.expect(test)
        times.append(time.perf_counter() - started)
    return times


def _rows(
    replayed: Sequence[float], computed: Sequence[float], cached: Sequence[float]
) -> list[dict[str, Any]]:
    replay_seconds = statistics.mean(replayed)
    rows = []
    for what, times, bar in (
        ("float64 twin and sensitivity, computed", computed, TWIN_BAR),
        ("the same, from the cache", cached, 1.0),
    ):
        ratio = statistics.mean(times) / replay_seconds
        rows.append(
            {
                "part": "oracle",
                "what": what,
                "tests": len(times),
                "replay_ms": round(1e3 * replay_seconds, 3),
                "oracle_ms": round(1e3 * statistics.mean(times), 3),
                "ratio": round(ratio, 2),
                "at_most": bar,
                "met": ratio <= bar,
            }
        )
    return rows
