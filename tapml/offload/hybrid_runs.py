"""The whole model with some operators on the target: runs, counts, and the journal's verdicts.

Lines 10 to 12 of Algorithm 1 for any set of operators. What does not fit the device is not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tapml.compare.verdict import Status
from tapml.execute.moved_bytes import CountedExecutor, Moved
from tapml.offload.device_room import DeviceRoom
from tapml.offload.earlier_failures import EarlierFailures
from tapml.offload.events import ModelRuns, Note
from tapml.offload.journal import JournaledVerdict
from tapml.offload.keys import model_key
from tapml.offload.model_check import check_model
from tapml.offload.operator_record import MODEL_VALIDATION, PASSING, OperatorRecord
from tapml.offload.verdict_key import VerdictKey
from tapml.offload.workbench import Workbench
from tapml_targets.errors import CompileError, DeviceLostError, RemoteError


@dataclass(frozen=True)
class Checked:
    """One model-wise verdict.

    Attributes
    ----------
    status
        ``not run`` where it does not fit the device.
    reason
        Why, in numbers.
    data
        All of it as JSON data; ``reused`` where it is the journal's.
    key
        What it depends on.
    """

    status: Status
    reason: str
    data: dict[str, Any]
    key: VerdictKey

    @property
    def passed(self) -> bool:
        """Whether the model passes like this."""
        return self.status == PASSING


@dataclass
class HybridRuns:
    """Checks the model with operators on the target, and counts what that takes.

    Attributes
    ----------
    bench
        The open session.
    room
        What the device has memory for.
    earlier
        Failures of earlier runs of the session.
    count
        Model-wise checks that were run.
    kept
        Model-wise verdicts that the journal held.
    promised
        How many the strategy takes at most, as far as that is known.
    moved
        Bytes that those runs and verdicts tell of, by entry.
    """

    bench: Workbench
    room: DeviceRoom
    earlier: EarlierFailures
    promised: int = 0
    count: int = 0
    kept: int = 0
    moved: dict[str, Moved] = field(default_factory=dict)
    _placed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._runner = CountedExecutor(self.bench.executor)
        self.room.release = self._release

    def check(self, placed: Sequence[OperatorRecord], subject: OperatorRecord) -> Checked:
        """MODELWISEVALIDATION with exactly these operators on the target.

        A verdict that the journal holds stands, whatever it says: nothing it depends on changed.
        One that passed with more memory than there is now stands where it would still be run.
        One that is no pass is made again where the repro folder of an operator that failed with it
        was removed.

        Parameters
        ----------
        placed
            Operators whose own tests pass.
        subject
            Of them the one that this is about; it is charged the time.

        Raises
        ------
        DeviceLostError
            If the device is lost.
        """
        bench = self.bench
        kernels = {record.operator.name: record.kernel for record in placed}
        key = model_key(kernels, bench.trace.key, bench.session.device, "model")
        known = self._standing(key, placed)
        if known is not None and known.status == PASSING and not self._has_room(known):
            lack = "" if self.room.has_room_for_any else self.lack(placed)
            if lack:
                # Not journaled: what passed stands for the day when there is more memory.
                return Checked("not run", lack, {"status": "not run", "reason": lack}, key)
        if known is not None:
            self.kept += 1
            self._count_moved(known.data.get("moved_bytes", {}))
            status: Status = "pass" if known.status == PASSING else "fail"
            reason = str(known.data.get("reason", ""))
            return Checked(status, reason, known.data | {"reused": True}, key)
        with subject.timed(MODEL_VALIDATION):
            checked = self._run(placed, key)
        if checked.data:
            data = checked.data | {"operators": len(kernels), "room": self.room.limit}
            bench.journal.record(key, "model", subject.operator.name, checked.status, data)
        return checked

    def lack(self, placed: Sequence[OperatorRecord]) -> str:
        """Why the model cannot run with these operators on the target; empty where it can."""
        self._place(placed)
        return self.room.lack_of_hybrid()

    def _standing(
        self, key: VerdictKey, placed: Sequence[OperatorRecord]
    ) -> JournaledVerdict | None:
        """The journal's verdict, where the model was run and nobody has taken it back."""
        known = self.bench.journal.verdict(key)
        if known is None or known.status == "not run":
            return None
        if known.status != PASSING:
            names = (record.operator.name for record in placed)
            if any(self.earlier.taken_back(name, known.time) for name in names):
                return None
        return known

    def _has_room(self, known: JournaledVerdict) -> bool:
        """Whether there is no less memory than when a verdict was made, which its key leaves out.

        What a device has may be less than it was, and ``--device-memory`` is of one run.
        """
        then, now = known.data.get("room"), self.room.limit
        return now == 0 or (isinstance(then, int) and 0 < then <= now)

    def _run(self, placed: Sequence[OperatorRecord], key: VerdictKey) -> Checked:
        lack = self.lack(placed)
        if lack:
            data: dict[str, Any] = {"status": "not run", "reason": lack}
            return Checked("not run", lack, data, key)
        self.count += 1
        try:
            verdict = check_model(self.bench.model, self._runner, self.bench.trace)
        except DeviceLostError:
            raise
        except (CompileError, RemoteError) as error:
            # Not a verdict about numbers: it is not kept, and tried again in the next run.
            return Checked("fail", f"the model does not run: {error}", {}, key)
        finally:
            counts = self._runner.take_counts()
            self.bench.watcher(ModelRuns(self.count, max(self.promised, self.count)))
        data = verdict.to_json() | {
            "moved_bytes": {name: each.to_json() for name, each in counts.items()}
        }
        self._count_moved(data["moved_bytes"])
        self._tell_excess(counts)
        return Checked(verdict.status, verdict.reason, data, key)

    def _place(self, placed: Sequence[OperatorRecord]) -> None:
        """Make the executor's placement this one."""
        executor = self.bench.executor
        kernels = {record.operator.name: record.kernel for record in placed}
        for name in executor.placed - kernels.keys():
            executor.unplace(name)
        for record in placed:
            name = record.operator.name
            if self._placed.get(name) != record.kernel and record.read_library is not None:
                executor.place(name, record.read_library)
        self._placed = kernels

    def moved_data(self) -> dict[str, Any]:
        """The bytes by entry as JSON data."""
        return {name: each.to_json() for name, each in self.moved.items()}

    def _release(self) -> None:
        """Give the device's memory to someone else; what is needed again is sent again."""
        self.bench.executor.release_device()
        self._runner.forget_device()

    def _count_moved(self, counts: dict[str, Any]) -> None:
        for name, each in counts.items():
            # A newer tapml may have counted more.
            numbers = {key.name: each[key.name] for key in fields(Moved) if key.name in each}
            self.moved.setdefault(name, Moved()).add(Moved(**numbers))

    def _tell_excess(self, counts: dict[str, Moved]) -> None:
        """More bytes moved than have to is a mistake of tapml's: results are right, time is not."""
        for name, each in counts.items():
            if each.moved != each.minimum:
                self.bench.watcher(
                    Note(
                        f"{name}: {each.moved} bytes moved between host and device where "
                        f"{each.minimum} would do; this is a mistake in tapml, please report it"
                    )
                )
