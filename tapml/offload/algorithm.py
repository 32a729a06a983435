"""Algorithm 1 of the paper: gradual target offloading, operator by operator in graph order."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tapml.carving.lost import rephrased
from tapml.carving.probing import is_probe
from tapml.carving.replay import replay_operator
from tapml.carving.replay_memory import ReplayMemory
from tapml.carving.replay_results import OperatorVerdict, ReplayResult
from tapml.carving.selection import Filters
from tapml.compiler.preflight import require
from tapml.compiler.reach import Reach, reach_of
from tapml.graph.plan import Operator
from tapml.localize.diagnosis import Diagnosis
from tapml.offload.events import OperatorChanged, OperatorState
from tapml.offload.keys import kernel_key, model_key, operator_key, tests_key
from tapml.offload.model_check import check_model
from tapml.offload.repro import write_other_failure, write_test_failure
from tapml.offload.settings import RunOptions
from tapml.offload.workbench import Workbench
from tapml_targets.errors import CompileError, DeviceLostError, RemoteError
from tapml_targets.library import Library

PASSING: Final = "pass"
OPERATOR_VALIDATION: Final = "operator validation"
MODEL_VALIDATION: Final = "model validation"


@dataclass
class OperatorRecord:
    """Where one operator stands, and the numbers that brought it there.

    Attributes
    ----------
    operator
        The operator.
    state
        ``waiting``, ``moved``, ``kept`` or ``failed``.
    reason
        Why it is kept or failed; empty otherwise.
    library
        Its kernels, once compiled.
    kernel
        Content hash of the Library.
    replay
        The operator-wise verdict as JSON data.
    model_check
        The model-wise verdict as JSON data.
    repro
        Its repro folder, where it failed.
    diagnosis
        What localization found, where a carved test failed.
    seconds
        Time by step: ``operator validation``, ``model validation``.
    """

    operator: Operator
    state: OperatorState = "waiting"
    reason: str = ""
    library: Library | None = None
    kernel: str = ""
    replay: dict[str, Any] = field(default_factory=dict)
    model_check: dict[str, Any] = field(default_factory=dict)
    repro: Path | None = None
    diagnosis: Diagnosis | None = None
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class Mover:
    """Moves operators over a workbench; one record per operator, in graph order."""

    bench: Workbench
    options: RunOptions
    records: dict[str, OperatorRecord]
    memory: ReplayMemory
    done: int = 0

    @cached_property
    def reach(self) -> Reach:
        """How large the plan's shape symbols get."""
        return reach_of(self.bench.imported.plan)

    def move_all(self) -> None:
        """Try every operator; stop at the first failure unless told to keep going."""
        for record in self.records.values():
            self.done += 1
            pattern = self._kept_by(record.operator.name)
            if pattern is not None:
                record.state, record.reason = "kept", f"kept on the source by {pattern!r}"
                self._tell(record)
                continue
            self._move(record)
            self._tell(record, self._numbers(record))
            if record.state == "failed" and not self.options.keep_going:
                return

    def _move(self, record: OperatorRecord) -> None:
        """Lines 6 to 13 of Algorithm 1 for one operator."""
        try:
            self._try(record)
        except DeviceLostError as error:
            # Most often this kernel took the driver down with it; nothing can go on without one.
            self._fail(record, f"the device was lost: {error}")
            self._tell(record, self._numbers(record))
            name = record.operator.name
            raise rephrased(
                error,
                before=f"while {name!r} was tried: ",
                after=f" (--keep-on-source {name} leaves it where it is)",
            ) from error
        except (CompileError, RemoteError) as error:
            self._fail(record, str(error))
            self.bench.executor.unplace(record.operator.name)

    def _try(self, record: OperatorRecord) -> None:
        self._tell(record, state="compiling")
        library = self.bench.compiled.library(record.operator.name)
        record.library, record.kernel = library, kernel_key(library)
        require(library, self.bench.target.limits, reach=self.reach)
        if not self._replay(record, library):
            return
        with _timed(record, MODEL_VALIDATION):
            self.bench.executor.place(record.operator.name, library)
            passed = self._check_model(record)
        if not passed:
            self.bench.executor.unplace(record.operator.name)
            return
        record.state = "moved"

    def _replay(self, record: OperatorRecord, library: Library) -> bool:
        """OPWISEVALIDATION: every carved test of the operator on the target."""
        bench, operator = self.bench, record.operator
        tests = list(bench.suite.tests(Filters(operators=(operator.name,))))
        key = operator_key(
            operator,
            record.kernel,
            tests_key(tests),
            bench.policy,
            bench.session.device,
        )
        known = bench.journal.verdict(key)
        if known is not None and known.status == PASSING:
            record.replay = known.data | {"reused": True}
            return True
        self._tell(record, {"tests": len(tests)}, state="replaying")
        with _timed(record, OPERATOR_VALIDATION):
            verdict = replay_operator(
                operator,
                bench.probing.tests(operator, tests),
                library,
                bench.session,
                bench.probing,
                bench.policy,
                memory=self.memory,
                stop_after=1,
            )
        record.replay = replay_data(verdict)
        bench.journal.record(key, "operator", operator.name, verdict.status, record.replay)
        if verdict.status == PASSING:
            return True
        self._fail(record, verdict.reason, verdict.worst)
        return False

    def _check_model(self, record: OperatorRecord) -> bool:
        """MODELWISEVALIDATION: the hybrid graph with this operator on the target."""
        bench = self.bench
        self._tell(record, self._numbers(record), state="model check")
        placed = {
            each.operator.name: each.kernel
            for each in self.records.values()
            if each.state == "moved" or each is record
        }
        key = model_key(placed, bench.trace.key, bench.policy, bench.session.device, "model")
        known = bench.journal.verdict(key)
        if known is not None and known.status == PASSING:
            record.model_check = known.data | {"reused": True}
            return True
        verdict = check_model(bench.model, bench.executor, bench.trace)
        record.model_check = verdict.to_json()
        bench.journal.record(key, "model", record.operator.name, verdict.status, record.model_check)
        if verdict.status == PASSING:
            return True
        self._fail(record, f"the whole model parts from the reference: {verdict.reason}")
        return False

    def _fail(
        self, record: OperatorRecord, reason: str, result: ReplayResult | None = None
    ) -> None:
        record.state, record.reason = "failed", reason
        operator, library = record.operator, record.library
        tried = result is not None and result.verdict.status != "not run"
        if tried and result is not None and library is not None:
            record.repro, record.diagnosis = write_test_failure(
                self.bench, operator, library, result
            )
        else:
            record.repro = write_other_failure(self.bench, operator, library, reason)
        self.bench.journal.append(
            "failed",
            operator=record.operator.name,
            reason=reason,
            repro=str(record.repro),
            diagnosis=None if record.diagnosis is None else record.diagnosis.to_json(),
        )

    def _kept_by(self, name: str) -> str | None:
        patterns = self.options.keep_on_source
        return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)

    def _numbers(self, record: OperatorRecord) -> dict[str, Any]:
        return {
            "tests": record.replay.get("tests", 0),
            "probes": record.replay.get("probes", 0),
            "worst_ratio": record.replay.get("worst_ratio"),
            "reused": bool(record.replay.get("reused")),
            "suspects": record.replay.get("suspects", []),
            "reason": record.reason,
        }

    def _tell(
        self,
        record: OperatorRecord,
        numbers: dict[str, Any] | None = None,
        *,
        state: OperatorState | None = None,
    ) -> None:
        self.bench.watcher(
            OperatorChanged(
                record.operator.name,
                state or record.state,
                self.done - (0 if state is None else 1),
                len(self.records),
                numbers or {"reason": record.reason},
            )
        )


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
        # Each test runs twice, under two poisons.
        "kernel_ms": sum(kernels) / len(kernels) / 2 * 1e3 if kernels else None,
    }


def finite_or_none(value: float) -> float | None:
    """JSON has neither Inf nor NaN."""
    return value if abs(value) < float("inf") else None


class _timed:
    """Add the block's time to a record, whatever comes of it."""

    def __init__(self, record: OperatorRecord, step: str) -> None:
        self._seconds = record.seconds
        self._step = step

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        elapsed = time.monotonic() - self._started
        self._seconds[self._step] = self._seconds.get(self._step, 0.0) + elapsed
