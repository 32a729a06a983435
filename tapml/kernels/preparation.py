"""Prepares probes, times and closer measurements for a watch in the background.

They need TVM or torch, which would block the watch's own interpreter, and thus a save, for seconds.
So they are jobs of a child process, which returns probes as plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.isolate.pool import Pool
from tapml.kernels.float64_sides import compile_twins_of, reference_ms, reference_of
from tapml.kernels.trial import KernelTrial
from tapml.oracles.expectation_store import decode, encode, store_of
from tapml.oracles.oracle import Oracle
from tapml.oracles.probes import ProbeCase
from tapml.oracles.probing import Probing
from tapml.plan.graph_plan import Operator
from tapml.suite.carved_test import CarvedTest
from tapml.suite.suite import Suite
from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.index_source import locate_source
from tapml.verdicts.policy import Policy
from tapml_targets.errors import TapmlError

Array = NDArray[Any]


def pack_probe(probe: ProbeCase) -> dict[str, Any]:
    """A probe as data for msgpack."""
    expectation = probe.expectation
    return {
        "id": probe.id,
        "symbols": dict(probe.symbols),
        "arrays": [_pack(array) for array in probe.arrays],
        "results": [_pack(array) for array in probe.results],
        "terms": expectation.terms,
        "repeats": expectation.repeats,
        "outputs": [
            {
                "values": _pack(output.values),
                "sensitivity": _pack(output.sensitivity),
                "source": output.source_place,
                "reference_ratio": output.reference_ratio,
                "operator_class": output.operator_class,
                "arithmetic": output.arithmetic,
            }
            for output in expectation.outputs
        ],
    }


def unpack_probe(data: dict[str, Any], operator: Operator) -> ProbeCase:
    """Inverse of :func:`pack_probe` for the same operator."""
    arrays = tuple(_unpack(each) for each in data["arrays"])
    results = tuple(_unpack(each) for each in data["results"])
    outputs = []
    for parameter, kind, raw, packed in zip(
        operator.written, operator.output_kinds, results, data["outputs"], strict=True
    ):
        place = packed["source"]
        source = None
        if place is not None:
            source = locate_source(place, operator.read, arrays, raw.shape)
        outputs.append(
            ExpectedOutput(
                parameter.name,
                parameter.dtype,
                kind,
                _unpack(packed["values"]),
                _unpack(packed["sensitivity"]),
                source,
                packed["reference_ratio"],
                packed["operator_class"],
                packed["arithmetic"],
            )
        )
    expectation = Expectation(tuple(outputs), data["terms"], data["repeats"])
    return ProbeCase(data["id"], operator.name, data["symbols"], arrays, results, expectation)


def _pack(array: Array) -> list[Any]:
    return [array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes()]


def _unpack(data: list[Any]) -> Array:
    dtype, shape, content = data
    return np.frombuffer(content, np.dtype(dtype)).reshape(shape)


COMPLETE: Final = "tapml.kernels.preparation:complete"
MEASURE: Final = "tapml.kernels.preparation:measure"


def payload(suite: Path, operator: str, tests: list[str], policy: Policy) -> dict[str, Any]:
    """Arguments of both jobs: the suite and the tests."""
    return {
        "suite": str(suite),
        "operator": operator,
        "tests": tests,
        "policy": policy.to_json(),
    }


def complete(data: dict[str, Any]) -> dict[str, Any]:
    """Probes for the first of the tests, and the mean time of one call of the reference."""
    with _opened(data) as (suite, probing):
        operator = suite.operators[data["operator"]]
        tests = [suite.test(name) for name in data["tests"]]
        probes = probing.probes(operator, tests[0])
        return {
            "probes": [pack_probe(probe) for probe in probes],
            "reference_ms": reference_ms(reference_of(operator)(), operator, tests),
        }


def measure(data: dict[str, Any]) -> dict[str, Any]:
    """Closer measurements of the tests, in the oracle's cache format."""
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


_DEADLINE_SECONDS: Final = 600.0


class Preparing:
    """Probes, the reference's time and closer measurements of a trial's tests.

    Parameters
    ----------
    trial
        Whose.
    tests
        The tests of a quick trial.

    Attributes
    ----------
    probes
        The exact probes for the first test, once available.
    reference_ms
        Mean time of one call of the reference, once known.
    problem
        Why part of the latest results is missing; empty if nothing is.
    """

    def __init__(self, trial: KernelTrial, tests: Sequence[CarvedTest]) -> None:
        self.probes: tuple[ProbeCase, ...] = ()
        self.reference_ms: float | None = None
        self.problem = ""
        self._trial = trial
        self._tests = {test.id: test for test in trial.tests}
        self._quick = [test.id for test in tests]
        # One at a time, to leave the other processor to a save.
        self._pool = Pool([COMPLETE, MEASURE], workers=1, deadline_seconds=_DEADLINE_SECONDS)
        self._asked: set[str] = set()
        self._jobs: list[Future[Any]] = []
        self._begun = False

    def begin(self, hasty: Iterable[str]) -> None:
        """Start jobs for missing results, closer measurements of `hasty` tests first."""
        self._measure(hasty)
        if not self._begun:
            self._begun = True
            self._submit(COMPLETE, self._quick)
            self._measure(self._quick)

    def stop(self) -> None:
        """Stop running jobs."""
        self._pool.close()

    def take_news(self) -> bool:
        """Collect new results; return whether there were any."""
        arrived = [job for job in self._jobs if job.done()]
        self._jobs = [job for job in self._jobs if job not in arrived]
        self.problem = ""
        for job in arrived:
            try:
                self._take(job.result())
            except TapmlError as error:
                self.problem = str(error)
        return bool(arrived)

    def _take(self, result: dict[str, Any]) -> None:
        operator = self._trial.operator
        for name, data in result.get("closer", ()):
            test = self._tests[name]
            found = decode(data, operator, test.read_inputs, test.read_outputs())
            self._trial.expectations.put_closer(test, found)
        if "probes" in result:
            self.probes = tuple(unpack_probe(each, operator) for each in result["probes"])
            self.reference_ms = result["reference_ms"]

    def _measure(self, tests: Iterable[str]) -> None:
        new = [name for name in tests if name not in self._asked]
        if new:
            self._asked.update(new)
            self._submit(MEASURE, new)

    def _submit(self, job: str, tests: list[str]) -> None:
        facts = self._trial.facts
        data = payload(facts.suite, self._trial.operator.name, tests, facts.policy)
        self._jobs.append(self._pool.submit(job, data))
