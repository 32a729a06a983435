"""What a watch needs TVM or torch for, as jobs of child processes.

In the watch's own process they would hold Python's interpreter for seconds, and a save would wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tapml.carving.probing import Probing
from tapml.carving.suite import Suite
from tapml.compare.expectation_store import encode, store_of
from tapml.compare.oracle import Oracle
from tapml.compare.policy import Policy
from tapml.kernels.float64_sides import compile_twins_of, reference_ms, reference_of
from tapml.kernels.probe_format import pack_probe

JOBS: Final = {
    "complete": "tapml.kernels.preparation:complete",
    "measure": "tapml.kernels.preparation:measure",
}


def payload(suite: Path, operator: str, tests: list[str], policy: Policy) -> dict[str, Any]:
    """What both jobs take: where the tests are, and which."""
    return {
        "suite": str(suite),
        "operator": operator,
        "tests": tests,
        "policy": policy.to_json(),
    }


def complete(data: dict[str, Any]) -> dict[str, Any]:
    """Probes beside the first of the tests, and the mean time of one call of the reference."""
    with _opened(data) as (suite, probing):
        operator = suite.operators[data["operator"]]
        tests = [suite.test(name) for name in data["tests"]]
        probes = probing.probes(operator, tests[0])
        return {
            "probes": [pack_probe(probe) for probe in probes],
            "reference_ms": reference_ms(reference_of(operator)(), operator, tests),
        }


def measure(data: dict[str, Any]) -> dict[str, Any]:
    """Closer measurements of the tests, as the oracle's cache keeps them."""
    with _opened(data) as (suite, probing):
        tests = [suite.test(name) for name in data["tests"]]
        return {
            "closer": [
                [test.id, encode(probing.appeal(test), test.read_outputs())] for test in tests
            ]
        }


@contextmanager
def _opened(data: dict[str, Any]) -> Iterator[tuple[Suite, Probing]]:
    with Suite.open(Path(data["suite"])) as suite:
        alone = {data["operator"]: suite.operators[data["operator"]]}
        policy = Policy.from_json(data["policy"])
        cache = store_of(suite.path)
        with Oracle(alone, compile_twins_of(alone), policy, cache=cache) as oracle:
            yield suite, Probing(oracle, reference_of(alone[data["operator"]]))
