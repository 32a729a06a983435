"""Replay of carved tests over loopback, warm: time a test, and overhead beyond kernel and bytes.

Run it alone with ``python -m scripts.bench_replay``, or through ``scripts/bench.py``.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.carving.record import carve
from tapml.carving.replay import replay
from tapml.carving.replay_memory import ReplayMemory
from tapml.carving.replay_results import ReplayResult
from tapml.carving.suite import Suite
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
from tapml_targets.errors import CompileError
from tapml_targets.target import Target

MODEL: Final = "pydoc-llama"
MEDIAN_BAR_MS: Final = 5.0
OVERHEAD_BAR_MS: Final = 2.0
_ROUNDS: Final = 2
_PROBE_BYTES: Final = 16 << 20


def measure() -> list[dict[str, Any]]:
    """Replay the demo model's tests until they are warm, then once more, measured."""
    model = load_model(MODEL)
    imported = import_model(model, cache=PlanCache())
    plan = imported.plan
    executor = Executor(plan, imported.weights, compile_reference(plan))
    policy = Policy()
    with tempfile.TemporaryDirectory() as folder, Compiler() as compiler:
        path = Path(folder) / "suite"
        prompts = calibration_prompts(model, 2)
        with (
            carve(model, executor, prompts, path, max_new_tokens=4) as suite,
            open_local("opencl") as session,
            Oracle(plan.operators, compile_twins, policy) as oracle,
        ):
            target = Target("opencl", limits=session.device.limits)
            libraries = {}
            for operator, library in compiler.compile_all(plan.operators.values(), target):
                if isinstance(library, CompileError):
                    raise library
                libraries[operator.name] = session.upload(library)
            results = _replay_all(suite, session, oracle, policy, libraries)
            rate = _bytes_per_second(session)
    return _rows(results, rate)


def _replay_all(
    suite: Suite, session: Session, oracle: Oracle, policy: Policy, libraries: dict[str, Any]
) -> list[ReplayResult]:
    operators = suite.operators
    with ReplayMemory(session) as memory:
        for _ in range(_ROUNDS):
            results = [
                replay(
                    operators[test.operator],
                    test,
                    libraries[test.operator],
                    session,
                    oracle,
                    policy,
                    memory=memory,
                )
                for test in suite.tests()
            ]
    return results


def _bytes_per_second(session: Session) -> float:
    """What the link carries, both ways together."""
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
    return [
        _row("one test, median", statistics.median(totals), MEDIAN_BAR_MS, len(results)),
        _row(
            "overhead beyond kernel and bytes, median",
            statistics.median(overheads),
            OVERHEAD_BAR_MS,
            len(results),
        ),
        _row(
            "overhead beyond kernel and bytes, 95th percentile",
            float(np.quantile(overheads, 0.95)),
            OVERHEAD_BAR_MS,
            len(results),
        ),
    ]


def _row(name: str, seconds: float, bar: float, tests: int) -> dict[str, Any]:
    milliseconds = seconds * 1e3
    return {
        "part": "replay",
        "name": name,
        "tests": tests,
        "milliseconds": round(milliseconds, 3),
        "at_most": bar,
        "met": milliseconds <= bar,
    }


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
