"""What being sure costs: float64 twin and sensitivity against the replay itself, cold and cached.

Run it alone with ``python -m scripts.bench_oracle``, or through ``scripts/bench.py``.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tapml.carving.carved_test import CarvedTest
from tapml.carving.record import carve
from tapml.carving.replay import replay
from tapml.carving.replay_memory import ReplayMemory
from tapml.carving.suite import Suite
from tapml.compare.expectation_store import store_of
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.execute.executor import Executor
from tapml.graph.cache import PlanCache
from tapml.graph.importer import import_model
from tapml.models import calibration_prompts
from tapml.models.huggingface import load_model
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.errors import CompileError
from tapml_targets.target import Target

MODEL: Final = "pydoc-llama"
TWIN_BAR: Final = 5.0
_TESTS: Final = 600
_PROMPTS: Final = 4
_NEW_TOKENS: Final = 12


@dataclass(frozen=True)
class _Bench:
    """A suite and a device that has every operator's kernels."""

    suite: Suite
    session: Session
    libraries: Mapping[str, RemoteLibrary]
    memory: ReplayMemory
    policy: Policy

    def tests(self, count: int) -> Iterator[CarvedTest]:
        """So many tests, spread evenly over the suite: every number has the same mix."""
        return islice(self.suite.tests(), 0, None, max(1, self.suite.count() // count))


def measure() -> list[dict[str, Any]]:
    """Twin and sensitivity per test, against the replay of the same tests."""
    with _opened() as bench:
        operators = bench.suite.operators
        twins = compile_twins(operators.values())
        path = store_of(bench.suite.path)
        with Oracle(operators, lambda _: twins, bench.policy, cache=path) as oracle:
            # Kernels and weights are on the device, and expectations in the cache, from here on.
            _replay(bench, oracle, _TESTS)
            replayed = _replay(bench, oracle, _TESTS)
            with Oracle(operators, lambda _: twins, bench.policy) as fresh:
                computed = _expect(bench, fresh, _TESTS)
            cached = _expect(bench, oracle, _TESTS)
    return _rows(replayed, computed, cached)


@contextmanager
def _opened() -> Iterator[_Bench]:
    model = load_model(MODEL)
    imported = import_model(model, cache=PlanCache())
    plan = imported.plan
    executor = Executor(plan, imported.weights, compile_reference(plan))
    with tempfile.TemporaryDirectory() as folder, Compiler() as compiler:
        path = Path(folder) / "suite"
        prompts = calibration_prompts(model, _PROMPTS)
        with (
            carve(model, executor, prompts, path, max_new_tokens=_NEW_TOKENS) as suite,
            open_local("opencl") as session,
        ):
            target = Target("opencl", limits=session.device.limits)
            libraries = {}
            for operator, library in compiler.compile_all(plan.operators.values(), target):
                if isinstance(library, CompileError):
                    raise library
                libraries[operator.name] = session.upload(library)
            with ReplayMemory(session) as memory:
                yield _Bench(suite, session, libraries, memory, Policy())


def _replay(bench: _Bench, oracle: Oracle, count: int) -> list[float]:
    """Replay `count` tests; seconds of each, without judging."""
    operators = bench.suite.operators
    times = []
    for test in islice(bench.tests(count), count):
        result = replay(
            operators[test.operator],
            test,
            bench.libraries[test.operator],
            bench.session,
            oracle,
            bench.policy,
            memory=bench.memory,
        )
        times.append(result.timing.reading + result.timing.device)
    return times


def _expect(bench: _Bench, oracle: Oracle, count: int) -> list[float]:
    times = []
    for test in islice(bench.tests(count), count):
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


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
