"""Replay cost per test with 50 to 5,000 tests of the same operators: it must be flat."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from scripts.carved_model import import_shipped, reference_executor
from tapml.carving.record import carve
from tapml.compiler.compiler import Compiler
from tapml.compiler.twin import compile_twins
from tapml.models import calibration_prompts
from tapml.oracles.expectation_store import store_of
from tapml.oracles.oracle import Oracle
from tapml.replaying.suite_replay import SuiteReplayer
from tapml.suite.selection import Filters
from tapml.verdicts.policy import Policy
from tapml_rpc.local import open_local

TESTS: Final = (50, 500, 5000)
# Fewest and most tests may differ by so much per test: one of either is a matter of microseconds.
BAR: Final = 1.25
# Decode steps of a prompt; more tests take more prompts.
_PROMPT_TOKENS: Final = 8
_STEPS: Final = 40


def measure(device: str = "opencl", sizes: tuple[int, ...] = TESTS) -> list[dict[str, Any]]:
    """Carve suites of so many tests; replay each, first without and then with expectations."""
    model, imported = import_shipped()
    executor = reference_executor(imported)
    decode = imported.plan.entries["decode"]
    sites = sum(call.layer == 0 for call in decode.calls)
    prompt = calibration_prompts(model, 1)[0].token_ids[:_PROMPT_TOKENS]
    rows: list[dict[str, Any]] = []
    policy = Policy()
    with tempfile.TemporaryDirectory() as folder, Compiler() as compiler, open_local(device) as at:
        for size in sizes:
            steps = -(-size // sites)
            prompts = [(*prompt[:-1], 2 + number) for number in range(-(-steps // _STEPS))]
            suite = carve(
                model,
                executor,
                prompts,
                Path(folder) / str(size),
                filters=Filters(layers=(0,), entries=("decode",)),
                max_new_tokens=1 + min(steps, _STEPS),
            )
            operators = suite.operators
            with (
                suite,
                Oracle(operators, compile_twins, policy, cache=store_of(suite.path)) as judge,
            ):
                replayer = SuiteReplayer(suite, at, compiler, judge, policy)
                # Kernels and twins are made once per operator, whatever the number of tests.
                replayer.replay(Filters(steps=(1,)))
                cold, tests = _seconds(replayer)
                used = time.process_time()
                warm, _ = _seconds(replayer)
                used = round(1e3 * (time.process_time() - used) / tests, 3)
            times = {"cold_ms": cold, "warm_ms": warm, "host_cpu_ms": used}
            rows.append({"part": "flat", "tests": tests, **times})
    for row in rows:
        row["warm_over_fewest"] = round(row["warm_ms"] / rows[0]["warm_ms"], 3)
        row["met"] = row["warm_over_fewest"] <= BAR
    return rows


def _seconds(replayer: SuiteReplayer) -> tuple[float, int]:
    """Milliseconds a test of a whole replay, and how many tests there were."""
    started = time.perf_counter()
    found = replayer.replay()
    milliseconds = 1e3 * (time.perf_counter() - started) / found.tests
    if found.status != "pass":
        raise SystemExit(f"the clean replay is {found.status}: nothing to measure")
    return round(milliseconds, 3), found.tests
