"""Model-wise checks with some operators on the target, reusing the journal's verdicts.

Lines 10 to 12 of Algorithm 1 for any set of operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from tapml.execute.moved_bytes import CountedExecutor, Moved
from tapml.offload.context import MigrationContext
from tapml.offload.device_room import DeviceRoom
from tapml.runs.events import Note
from tapml.runs.journal import Result
from tapml.runs.result_key import ResultKey
from tapml.session.earlier_failures import EarlierFailures
from tapml.session.events import ModelRuns
from tapml.session.keys import model_key
from tapml.session.operator_record import MODEL_VALIDATION, PASSING, OperatorRecord
from tapml.verdicts.verdict import Status
from tapml_targets.errors import CompileError, DeviceLostError, RemoteError


@dataclass(frozen=True)
class Checked:
    """One model-wise verdict.

    Attributes
    ----------
    status
        ``not run`` if the model does not fit the device.
    reason
        The reason, with numbers.
    data
        The verdict as JSON data; ``reused`` is true if it is from the journal.
    key
        Its dependencies.
    """

    status: Status
    reason: str
    data: dict[str, Any]
    key: ResultKey

    @classmethod
    def reused(cls, known: Result, key: ResultKey) -> Checked:
        """The journal's verdict."""
        reason = str(known.data.get("reason", ""))
        return cls(cast("Status", known.status), reason, known.data | {"reused": True}, key)

    @property
    def passed(self) -> bool:
        """Whether the model passes."""
        return self.status == PASSING


@dataclass
class HybridRuns:
    """Checks the model with operators on the target, and counts runs and transferred bytes.

    Attributes
    ----------
    context
        The open session.
    room
        The device's memory.
    earlier
        Failures of earlier runs of the session.
    promised
        The most runs that the strategy needs, as far as known.
    count
        Model-wise checks that ran.
    kept
        Model-wise verdicts that were reused from the journal.
    moved
        Bytes transferred by these checks, by entry.
    """

    context: MigrationContext
    room: DeviceRoom
    earlier: EarlierFailures
    promised: int = 0
    count: int = 0
    kept: int = 0
    moved: dict[str, Moved] = field(default_factory=dict)
    _placed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The count begins with nothing on any device; a reference has run there before.
        self.context.executor.release_device()
        self._runner = CountedExecutor(self.context.executor)
        self.room.release = self._release

    def check(self, placed: Sequence[OperatorRecord], subject: OperatorRecord) -> Checked:
        """MODELWISEVALIDATION with exactly these operators on the target.

        A verdict in the journal is reused, with two exceptions: a pass that does not fit into the
        memory of today, and a failure if the repro folder of one of its operators was removed.

        Parameters
        ----------
        placed
            Operators whose own tests pass.
        subject
            The one of them that the check is for; the time counts as its.

        Raises
        ------
        DeviceLostError
            If the device is lost.
        """
        context = self.context
        kernels = {record.operator.name: record.kernel for record in placed}
        device, reference = context.session.device, context.reference_identity
        key = model_key(kernels, context.trace.key, device, "model", reference)
        known = self._journaled(key, placed)
        if known is not None and known.status == PASSING and not self._has_room(known):
            lack = "" if self.room.has_room_for_any else self.shortfall(placed)
            if lack:
                # Not journaled: the pass remains valid for a run with more memory.
                return Checked("not run", lack, {"status": "not run", "reason": lack}, key)
        if known is not None:
            self.kept += 1
            self._count_moved(known.data.get("moved_bytes", {}))
            return Checked.reused(known, key)
        with subject.timed(MODEL_VALIDATION):
            checked = self._run(placed, key)
        if checked.data:
            data = checked.data | {"operators": len(kernels), "room": self.room.limit}
            context.journal.record(key, "model", subject.operator.name, checked.status, data)
        return checked

    def shortfall(self, placed: Sequence[OperatorRecord]) -> str:
        """Why the model cannot run with these operators on the target; empty if it can."""
        self._place(placed)
        return self.room.hybrid_shortfall()

    def _journaled(self, key: ResultKey, placed: Sequence[OperatorRecord]) -> Result | None:
        """The journal's verdict, if the model ran and the user has not dismissed the failure."""
        known = self.context.journal.result(key)
        if known is None or known.status == "not run":
            return None
        if known.status != PASSING:
            names = (record.operator.name for record in placed)
            if any(self.earlier.was_dismissed(name, known.time) for name in names):
                return None
        return known

    def _has_room(self, known: Result) -> bool:
        """Whether the device has at least as much memory as when the verdict was made.

        The memory is not part of the key: it may vary, and ``--device-memory`` is for one run.
        """
        then, now = known.data.get("room"), self.room.limit
        return now == 0 or (isinstance(then, int) and 0 < then <= now)

    def _run(self, placed: Sequence[OperatorRecord], key: ResultKey) -> Checked:
        lack = self.shortfall(placed)
        if lack:
            data: dict[str, Any] = {"status": "not run", "reason": lack}
            return Checked("not run", lack, data, key)
        self.count += 1
        try:
            verdict = self.context.workload.check_model(self._runner, self.context.trace)
        except DeviceLostError:
            raise
        except (CompileError, RemoteError) as error:
            # Not a numerical verdict: do not journal it, so that the next run tries again.
            return Checked("fail", f"the model does not run: {error}", {}, key)
        finally:
            counts = self._runner.take_counts()
            self.context.watcher(ModelRuns(self.count, max(self.promised, self.count)))
        data = verdict.to_json() | {
            "moved_bytes": {name: each.to_json() for name, each in counts.items()}
        }
        self._count_moved(data["moved_bytes"])
        self._report_excess(counts)
        return Checked(verdict.status, verdict.reason, data, key)

    def _place(self, placed: Sequence[OperatorRecord]) -> None:
        """Change the executor's placement."""
        executor = self.context.executor
        kernels = {record.operator.name: record.kernel for record in placed}
        for name in executor.placed - kernels.keys():
            executor.unplace(name)
        for record in placed:
            name = record.operator.name
            if self._placed.get(name) != record.kernel and record.read_library is not None:
                executor.place(name, record.read_library)
        self._placed = kernels

    def moved_data(self) -> dict[str, Any]:
        """The transferred bytes by entry as JSON data."""
        return {name: each.to_json() for name, each in self.moved.items()}

    def _release(self) -> None:
        """Release the device's memory; what is needed later is sent again."""
        self.context.executor.release_device()
        self._runner.forget_device()

    def _count_moved(self, counts: dict[str, Any]) -> None:
        for name, each in counts.items():
            # A newer version may have more fields.
            numbers = {key.name: each[key.name] for key in fields(Moved) if key.name in each}
            self.moved.setdefault(name, Moved()).add(Moved(**numbers))

    def _report_excess(self, counts: dict[str, Moved]) -> None:
        for name, each in counts.items():
            if each.moved != each.minimum:
                text = (
                    f"{name}: {each.moved} bytes were transferred between host and device, but "
                    f"{each.minimum} suffice; the results are right, but this is a bug in tapml: "
                    "please report it"
                )
                self.context.watcher(Note(text))
