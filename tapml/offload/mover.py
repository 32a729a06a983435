"""One operator on its way to the target: its kernels, the device's limits, its carved tests.

Lines 6 to 9 of Algorithm 1. When the whole model is checked with it is decided elsewhere
(:mod:`tapml.offload.strategies`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from tapml.carving.lost import LOST, UNBUILT, rephrased
from tapml.carving.replay import replay_operator
from tapml.carving.replay_memory import ReplayMemory
from tapml.carving.replay_results import OperatorVerdict, ReplayResult
from tapml.compare.picture import picture
from tapml.compiler.preflight import long_loops, require
from tapml.compiler.reach import Reach, reach_of
from tapml.kernels.build_failure import compiler_text
from tapml.kernels.written import UnfitKernelError, WrittenKernel
from tapml.offload.changes import what_changed
from tapml.offload.earlier_failures import EarlierFailures
from tapml.offload.events import Note, OperatorChanged, OperatorState
from tapml.offload.journal import JournaledVerdict
from tapml.offload.keys import kernel_key, operator_key
from tapml.offload.lacks import lacks_of
from tapml.offload.operator_record import OPERATOR_VALIDATION, PASSING, OperatorRecord
from tapml.offload.operator_verdict import replay_data
from tapml.offload.repro import (
    REPRO,
    LastTest,
    lost_result,
    write_other_failure,
    write_test_failure,
)
from tapml.offload.suite_keys import SuiteKeys
from tapml.offload.times import operator_times
from tapml.offload.verdict_key import VerdictKey
from tapml.offload.workbench import Workbench
from tapml_targets.errors import CompileError, DeviceLostError, LimitExceededError, RemoteError
from tapml_targets.library import Library
from tapml_targets.placement import placement_of


@dataclass
class Mover:
    """Validates operators by their own tests and tells what becomes of each.

    Attributes
    ----------
    bench
        The open session.
    memory
        Device memory that replays share.
    total
        How many operators there are.
    done
        Of how many it is settled what becomes of them.
    """

    bench: Workbench
    memory: ReplayMemory
    total: int
    done: int = 0
    _running: LastTest | None = field(default=None, init=False)
    _by_hand: WrittenKernel | None = field(default=None, init=False)

    @cached_property
    def reach(self) -> Reach:
        """How large the plan's shape symbols get."""
        return reach_of(self.bench.imported.plan)

    @cached_property
    def _suite_keys(self) -> SuiteKeys:
        return SuiteKeys(self.bench.suite, self.bench.journal)

    @cached_property
    def _room(self) -> list[int]:
        limits = self.bench.target.limits
        return [limits.memory_bytes, limits.max_buffer_bytes]

    @cached_property
    def earlier(self) -> EarlierFailures:
        """Failures of earlier runs of the session."""
        return EarlierFailures(self.bench.journal, self.bench.folder / REPRO)

    def validate(self, record: OperatorRecord) -> bool:
        """Get an operator's kernels and replay its tests; it is ``failed`` where they do not pass.

        Raises
        ------
        DeviceLostError
            If the device is lost; most often this kernel took the driver down with it.
        """
        self._running = None
        try:
            self.tell(record, state="compiling")
            self._find_kernels(record)
            return self._validate(record)
        except DeviceLostError as error:
            raise self.lost(record, error) from error
        except (CompileError, RemoteError) as error:
            if isinstance(error, UnfitKernelError):
                record.kernel, record.library = kernel_key(error.library), error.library
            if isinstance(error, LimitExceededError) and record.library is not None:
                limits = self.bench.target.limits
                record.lacks = lacks_of(record.library, limits, self.reach)
            self.fail(record, str(error))
            return False

    def fail(
        self,
        record: OperatorRecord,
        reason: str,
        *,
        result: ReplayResult | None = None,
        key: VerdictKey | None = None,
    ) -> None:
        """An operator failed: write its repro folder and the journal's row.

        Parameters
        ----------
        reason
            Why, in numbers.
        result
            The carved test that did not pass, where there is one.
        key
            Of the verdict that says so, where there is one: it stands as long as nothing changes.
        """
        record.state, record.reason = "failed", reason
        operator, library = record.operator, record.library
        tried = result is not None and result.verdict.status != "not run"
        if tried and result is not None and library is not None:
            record.repro, record.diagnosis = write_test_failure(
                self.bench, operator, library, result
            )
        else:
            record.repro = write_other_failure(
                self.bench, operator, library, reason, written=record.written
            )
        if key is not None and self.earlier.of(operator.name, key) is not None:
            return
        self.bench.journal.append(
            "failed",
            operator=operator.name,
            key="" if key is None else key.hash,
            kernel=record.kernel,
            reason=reason,
            repro=str(record.repro),
            diagnosis=None if record.diagnosis is None else record.diagnosis.to_json(),
        )

    def lost(self, record: OperatorRecord, error: DeviceLostError) -> DeviceLostError:
        """The device was lost over an operator; the error to end the run with.

        The operator failed, but where the way to a device elsewhere ended, or the lease on it:
        then nothing was found out about the operator, and the next run takes it up.
        """
        during = f"while {record.operator.name!r} was tried: "
        if type(error) is DeviceLostError and self.bench.elsewhere:
            self.tell(record, state="waiting")
            return rephrased(error, before=during)
        reason = f"{LOST}{error}"
        case = None if self._running is None else self._running.case
        result = None if case is None else lost_result(self.bench, case, reason)
        self.fail(record, reason, result=result)
        self.settle(record)
        name = record.operator.name
        return rephrased(
            error,
            before=during,
            after=f" (if it does that again, --keep-on-source {name} leaves it where it is)",
        )

    def settle(self, record: OperatorRecord) -> None:
        """Tell what became of an operator."""
        self.done += 1
        self.tell(record)

    def tell(self, record: OperatorRecord, *, state: OperatorState | None = None) -> None:
        """Tell where an operator is, or that it is on its way to the next state."""
        self.bench.watcher(
            OperatorChanged(
                record.operator.name,
                state or record.state,
                self.done,
                self.total,
                _numbers(record) if record.replay else {"reason": record.reason},
            )
        )

    def _find_kernels(self, record: OperatorRecord) -> None:
        """Line 6: an initial implementation, by hand where there is one."""
        operator, compiled = record.operator, self.bench.compiled
        manifest = self.bench.kernels.manifest_path(operator)
        # Said of one that cannot be used as well: it is what has to be mended.
        record.written = "" if manifest is None else str(manifest.parent)
        self._by_hand = written = self.bench.kernels.find(operator)
        if written is None:
            record.kernel = compiled.kernel(operator.name)
            record.read_library = partial(compiled.library, operator.name)
        else:
            record.kernel, record.library = kernel_key(written.library), written.library

    def _validate(self, record: OperatorRecord) -> bool:
        """The device's limits and OPWISEVALIDATION, where the journal does not hold the verdict."""
        bench, operator = self.bench, record.operator
        tests = self._suite_keys.of(operator.name)
        key = operator_key(operator, record.kernel, tests, bench.policy, bench.session.device)
        known = bench.journal.verdict(key)
        if known is None or not self._has_room(known):
            require(self._library(record), bench.target.limits, reach=self.reach)
            bound = None if bench.self_test is None else bench.self_test.loop_bound
            for warning in long_loops(self._library(record), bound, reach=self.reach):
                bench.watcher(Note(str(warning)))
        if known is not None and self._stands(record, key, known):
            return known.status == PASSING
        return self._replay(record, key)

    def _library(self, record: OperatorRecord) -> Library:
        library = record.library
        assert library is not None  # noqa: S101 - found before
        return library

    def _has_room(self, known: JournaledVerdict) -> bool:
        """Whether there is no less memory than when a verdict was made.

        It is no part of the device's fingerprint: on a processor it follows what else runs.
        """
        match known.data.get("room"):
            case [int(), int()] as then:
                return all(
                    now == 0 or 0 < before <= now
                    for before, now in zip(then, self._room, strict=True)
                )
        return False

    def _replay(self, record: OperatorRecord, key: VerdictKey) -> bool:
        """OPWISEVALIDATION: every carved test of the operator on the target."""
        bench, operator = self.bench, record.operator
        library = self._library(record)
        tests = list(bench.suite.tests_of(operator.name))
        record.again = self._why_again(record, key)
        record.replay = {"tests": len(tests)}
        self.tell(record, state="replaying")
        bench.journal.append("step", operator=operator.name, state="replaying")
        record.replay = {}
        self._running = LastTest(bench.probing.tests(operator, tests))
        with record.timed(OPERATOR_VALIDATION):
            verdict = replay_operator(
                operator,
                self._running,
                library,
                bench.session,
                bench.probing,
                bench.policy,
                memory=self.memory,
                stop_after=1,
            )
            verdict = self._in_own_words(verdict)
            record.replay = replay_data(verdict) | self._seen(record, verdict)
            record.replay["room"] = self._room
            if verdict.status == PASSING:
                record.replay["times"] = operator_times(
                    bench, operator, tests, verdict, library=library
                )
        bench.journal.record(key, "operator", operator.name, verdict.status, record.replay)
        if verdict.status != PASSING:
            self.fail(record, verdict.reason, result=verdict.worst, key=key)
        return verdict.status == PASSING

    def _in_own_words(self, verdict: OperatorVerdict) -> OperatorVerdict:
        """A verdict in which a compiler speaks of the file that was written by hand."""
        if self._by_hand is None or not verdict.reason.startswith(UNBUILT):
            return verdict
        session = self.bench.session
        log = verdict.reason.removeprefix(UNBUILT)
        text = compiler_text(self._by_hand, log, lambda lib: session.unload(session.upload(lib)))
        return replace(verdict, reason=UNBUILT + text)

    def _stands(self, record: OperatorRecord, key: VerdictKey, known: JournaledVerdict) -> bool:
        """Take the journal's verdict; a failure only where all that was found out is still there.

        What was not run may run today.
        """
        if known.status != PASSING:
            failure = self.earlier.of(record.operator.name, key)
            if failure is None or known.status == "not run":
                return False
            record.state, record.reason = "failed", failure.reason
            record.repro, record.diagnosis = failure.repro, failure.diagnosis
        record.replay = known.data | {"reused": True}
        return True

    def _why_again(self, record: OperatorRecord, key: VerdictKey) -> tuple[str, ...]:
        latest = self.bench.journal.latest("operator", record.operator.name)
        if latest is None:
            return ()
        return what_changed(latest.parts, key) or (f"it was {latest.status!r} before",)

    def _seen(self, record: OperatorRecord, verdict: OperatorVerdict) -> dict[str, Any]:
        """The errors of the worst test as a picture, and what ran."""
        placement = placement_of(self._library(record), record.operator.name)
        seen: dict[str, Any] = {"kernel": record.kernel, "placement": placement}
        seen["written"] = record.written
        worst = verdict.worst
        if worst is not None and worst.actual:
            seen["picture"] = picture(worst, self.bench.probing.expect(worst.case))
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
