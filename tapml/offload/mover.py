"""Operator-wise validation: an operator's kernels, the device's limits and its carved tests.

Lines 6 to 9 of Algorithm 1; :mod:`tapml.offload.strategies` schedules the model-wise checks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from tapml.compiler.preflight import require
from tapml.compiler.symbol_ranges import SymbolRanges, symbol_ranges
from tapml.kernels.build_failure import compiler_text
from tapml.kernels.written import UnfitKernelError, WrittenKernel
from tapml.offload.context import MigrationContext
from tapml.offload.limit_violations import limit_violations
from tapml.offload.repro import (
    REPRO,
    LastTest,
    lost_result,
    write_other_failure,
    write_test_failure,
)
from tapml.replaying.failure_text import LOST, UNBUILT, with_context
from tapml.replaying.memory import ReplayMemory
from tapml.replaying.pace import Pace, Pacer
from tapml.replaying.replayer import replay_operator
from tapml.replaying.results import OperatorVerdict, ReplayResult
from tapml.replaying.times import measure
from tapml.runs.journal import Result
from tapml.runs.result_key import ResultKey
from tapml.session.changes import what_changed
from tapml.session.earlier_failures import EarlierFailures
from tapml.session.events import OperatorChanged, OperatorState
from tapml.session.keys import kernel_key, operator_key
from tapml.session.operator_record import OPERATOR_VALIDATION, PASSING, OperatorRecord
from tapml.session.operator_verdict import replay_data
from tapml.session.suite_keys import SuiteKeys
from tapml.verdicts.picture import picture
from tapml.verdicts.verdict import Cause, cause_of
from tapml_targets.errors import CompileError, DeviceLostError, LimitExceededError, RemoteError
from tapml_targets.library import Library
from tapml_targets.placement import placement_of


@dataclass
class Mover:
    """Validates operators by their own tests and reports their states.

    Attributes
    ----------
    context
        The open session.
    memory
        Device memory that replays share.
    total
        Number of operators.
    pace
        The longest that an operator may take; None for no bound.
    done
        Number of operators in a final state.
    """

    context: MigrationContext
    memory: ReplayMemory
    total: int
    pace: Pace | None = None
    done: int = 0
    _running: LastTest | None = field(default=None, init=False)
    _by_hand: WrittenKernel | None = field(default=None, init=False)

    @cached_property
    def ranges(self) -> SymbolRanges:
        """The ranges of the plan's shape symbols."""
        return symbol_ranges(self.context.imported.plan)

    @cached_property
    def _pacer(self) -> Pacer | None:
        if self.pace is None:
            return None
        return Pacer(self.pace, self.context.session, lambda: self.context.executor.reference)

    @cached_property
    def _suite_keys(self) -> SuiteKeys:
        return SuiteKeys(self.context.suite, self.context.journal)

    @cached_property
    def _room(self) -> list[int]:
        limits = self.context.target.limits
        return [limits.memory_bytes, limits.max_buffer_bytes]

    @cached_property
    def earlier(self) -> EarlierFailures:
        """Failures of earlier runs of the session."""
        return EarlierFailures(self.context.journal, self.context.folder / REPRO)

    def validate(self, record: OperatorRecord) -> bool:
        """Get an operator's kernels and replay its tests; if that fails, record the failure.

        Raises
        ------
        DeviceLostError
            If the device is lost, most often because this kernel crashed the driver.
        """
        self._running = None
        try:
            self.tell(record, state="compiling")
            self._find_kernels(record)
            return self._validate(record) and self._is_fast_enough(record)
        except DeviceLostError as error:
            raise self.lost(record, error) from error
        except (CompileError, RemoteError) as error:
            if isinstance(error, UnfitKernelError):
                record.kernel, record.library = kernel_key(error.library), error.library
            if isinstance(error, LimitExceededError) and record.library is not None:
                limits = self.context.target.limits
                record.lacks = limit_violations(record.library, limits, self.ranges)
            cause = Cause.NO_KERNEL if record.library is None else cause_of(error)
            self.fail(record, cause, str(error))
            return False

    def fail(
        self,
        record: OperatorRecord,
        cause: Cause,
        reason: str,
        *,
        result: ReplayResult | None = None,
        key: ResultKey | None = None,
    ) -> None:
        """Record that an operator failed, in its repro folder and the journal.

        Parameters
        ----------
        record
            The operator.
        cause, reason
            The cause, and the reason with numbers.
        result
            The failed carved test, if any.
        key
            Key of the failed verdict, if any; the failure is reused as long as the key is the same.
        """
        record.state, record.cause, record.reason = "failed", cause, reason
        operator, library = record.operator, record.library
        tried = result is not None and result.verdict.status != "not run"
        if tried and result is not None and library is not None:
            record.repro, record.diagnosis = write_test_failure(
                self.context, operator, library, result
            )
        else:
            record.repro = write_other_failure(
                self.context, operator, library, cause, reason, written=record.written
            )
        if key is not None and self.earlier.of(operator.name, key) is not None:
            return
        self.context.journal.append(
            "failed",
            operator=operator.name,
            key="" if key is None else key.hash,
            kernel=record.kernel,
            cause=cause,
            reason=reason,
            repro=str(record.repro),
            diagnosis=None if record.diagnosis is None else record.diagnosis.to_json(),
        )

    def lost(self, record: OperatorRecord, error: DeviceLostError) -> DeviceLostError:
        """Record that the device was lost, and return the error that ends the run.

        The operator counts as failed, unless only the connection to a remote device or its lease
        was lost: then the next run tries the operator again.
        """
        during = f"while {record.operator.name!r} was tried: "
        if type(error) is DeviceLostError and self.context.is_remote:
            self.tell(record, state="waiting")
            return with_context(error, before=during)
        cause, reason = cause_of(error), f"{LOST}{error}"
        case = None if self._running is None else self._running.case
        result = None if case is None else lost_result(self.context, case, cause, reason)
        self.fail(record, cause, reason, result=result)
        self.settle(record)
        name = record.operator.name
        return with_context(
            error,
            before=during,
            after=f" (if it does that again, --keep-on-source {name} skips it)",
        )

    def settle(self, record: OperatorRecord) -> None:
        """Report an operator's final state."""
        self.done += 1
        self.tell(record)

    def tell(self, record: OperatorRecord, *, state: OperatorState | None = None) -> None:
        """Report an operator's state, or the given one."""
        self.context.watcher(
            OperatorChanged(
                record.operator.name,
                state or record.state,
                self.done,
                self.total,
                _numbers(record) if record.replay else {"reason": record.reason},
            )
        )

    def _find_kernels(self, record: OperatorRecord) -> None:
        """Line 6: an initial implementation; a hand-written one takes precedence."""
        operator, compiled = record.operator, self.context.compiled
        manifest = self.context.kernels.manifest_path(operator)
        # Also for a kernel that cannot be used: the user has to fix it.
        record.written = "" if manifest is None else str(manifest.parent)
        self._by_hand = written = self.context.kernels.find(operator)
        if written is None:
            record.kernel = compiled.kernel(operator.name)
            record.read_library = partial(compiled.library, operator.name)
        else:
            record.kernel, record.library = kernel_key(written.library), written.library

    def _validate(self, record: OperatorRecord) -> bool:
        """Check the limits and run OPWISEVALIDATION, unless the journal has the verdict."""
        context, operator = self.context, record.operator
        tests = self._suite_keys.of(operator.name)
        key = operator_key(
            operator,
            record.kernel,
            tests,
            context.policy,
            context.session.device,
            context.reference_identity,
        )
        known = context.journal.result(key)
        if known is None or not self._has_room(known):
            require(self._library(record), context.target.limits, ranges=self.ranges)
        if known is not None and self._reuse(record, key, known):
            return known.status == PASSING
        return self._replay(record, key)

    def _library(self, record: OperatorRecord) -> Library:
        library = record.library
        assert library is not None  # noqa: S101 - found before
        return library

    def _has_room(self, known: Result) -> bool:
        """Whether the device has at least as much memory as when the verdict was made.

        The memory is not part of the fingerprint: on a CPU it depends on other processes.
        """
        match known.data.get("room"):
            case [int(), int()] as then:
                return all(
                    now == 0 or 0 < before <= now
                    for before, now in zip(then, self._room, strict=True)
                )
        return False

    def _replay(self, record: OperatorRecord, key: ResultKey) -> bool:
        """OPWISEVALIDATION: every carved test of the operator on the target."""
        context, operator = self.context, record.operator
        library = self._library(record)
        tests = list(context.suite.tests_of(operator.name))
        record.again = self._why_again(record, key)
        record.replay = {"tests": len(tests)}
        self.tell(record, state="replaying")
        context.journal.append("step", operator=operator.name, state="replaying")
        record.replay = {}
        self._running = LastTest(context.probing.tests(operator, tests))
        with record.timed(OPERATOR_VALIDATION):
            verdict = replay_operator(
                operator,
                self._running,
                library,
                context.session,
                context.probing,
                context.policy,
                memory=self.memory,
                stop_after=1,
            )
            verdict = self._with_source_positions(verdict)
            record.replay = replay_data(verdict) | self._seen(record, verdict)
            record.replay["room"] = self._room
            if verdict.status == PASSING:
                record.replay["times"] = measure(
                    context.imported.plan,
                    context.executor.reference,
                    context.session,
                    operator,
                    tests,
                    verdict,
                    library=library,
                )
        context.journal.record(key, "operator", operator.name, verdict.status, record.replay)
        if verdict.status != PASSING:
            self.fail(record, verdict.cause, verdict.reason, result=verdict.worst, key=key)
        return verdict.status == PASSING

    def _is_fast_enough(self, record: OperatorRecord) -> bool:
        """Whether its measured time keeps the bound; if not, record the failure."""
        times = record.replay.get("times", {})
        if self._pacer is None or times.get("target_ms") is None or not times.get("nbytes"):
            return True
        there = times["reference_ms"]
        reason = self._pacer.reason(
            record.library,
            times["target_ms"] / 1e3,
            None if there is None else there / 1e3,
            times["nbytes"],
        )
        if not reason:
            return True
        self.fail(record, Cause.TOO_SLOW, reason)
        return False

    def _with_source_positions(self, verdict: OperatorVerdict) -> OperatorVerdict:
        """The verdict, with positions of compiler errors in the hand-written source file."""
        if self._by_hand is None or verdict.cause != Cause.UNBUILT:
            return verdict
        session = self.context.session
        log = verdict.reason.removeprefix(UNBUILT)
        text = compiler_text(self._by_hand, log, lambda lib: session.unload(session.upload(lib)))
        return replace(verdict, reason=UNBUILT + text)

    def _reuse(self, record: OperatorRecord, key: ResultKey, known: Result) -> bool:
        """Reuse a verdict: never "not run", and a failure only if its repro folder exists."""
        if known.status != PASSING:
            failure = self.earlier.of(record.operator.name, key)
            if failure is None or known.status == "not run":
                return False
            record.state, record.cause, record.reason = "failed", failure.cause, failure.reason
            record.repro, record.diagnosis = failure.repro, failure.diagnosis
        record.replay = known.data | {"reused": True}
        return True

    def _why_again(self, record: OperatorRecord, key: ResultKey) -> tuple[str, ...]:
        latest = self.context.journal.latest("operator", record.operator.name)
        if latest is None:
            return ()
        return what_changed(latest.parts, key) or (f"it was {latest.status!r} before",)

    def _seen(self, record: OperatorRecord, verdict: OperatorVerdict) -> dict[str, Any]:
        """The kernel, its placement, and a picture of the worst test's errors."""
        placement = placement_of(self._library(record), record.operator.name)
        seen: dict[str, Any] = {"kernel": record.kernel, "placement": placement}
        seen["written"] = record.written
        worst = verdict.worst
        if worst is not None and worst.actual:
            seen["picture"] = picture(worst, self.context.probing.expect(worst.case))
        return seen


def _numbers(record: OperatorRecord) -> dict[str, Any]:
    return {
        "tests": record.replay.get("tests", 0),
        "probes": record.replay.get("probes", 0),
        "worst_ratio": record.replay.get("worst_ratio"),
        "reused": all(
            verdict.get("reused") for verdict in (record.replay, record.model_check) if verdict
        ),
        "suspects": record.replay.get("suspects", []),
        "times": record.replay.get("times", {}),
        "again": list(record.again),
        "written": record.written,
        "placement": record.replay.get("placement", ""),
        "reason": record.reason,
    }
