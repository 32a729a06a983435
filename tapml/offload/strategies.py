"""When the whole model is checked: after every operator, or with all of them and in halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tapml.carving.lost import rephrased
from tapml.offload.culprits import minimal_culprits, most_checks
from tapml.offload.hybrid_runs import Checked, HybridRuns
from tapml.offload.mover import Mover
from tapml.offload.operator_record import OperatorRecord
from tapml.offload.settings import Strategy
from tapml_targets.errors import DeviceLostError

Culprits: TypeAlias = list[tuple[str, ...]]
Moves: TypeAlias = Callable[[Mover, HybridRuns, Sequence[OperatorRecord], bool], Culprits]

PROMISES: Final[dict[Strategy, str]] = {
    "one-by-one": "one model-wise run for each operator to move",
    "bisect": "one model-wise run where the model passes, and at most ceil(log2(N)) + 2 more for "
    "each operator at fault",
}


def one_by_one(
    mover: Mover, runs: HybridRuns, records: Sequence[OperatorRecord], keep_going: bool
) -> Culprits:
    """Algorithm 1 as in the paper: the model is checked with every operator that is added.

    Parameters
    ----------
    mover, runs
        Validate operators, and the model.
    records
        The operators to move, in order.
    keep_going
        Leave an operator that fails on the source and go on; else stop there.

    Returns
    -------
    list
        Names of operators that pass their own tests and fail the model, in groups that fail
        together: here each by itself, beside those that had moved before it.
    """
    culprits: Culprits = []
    moved: list[OperatorRecord] = []
    runs.promised = len(records)
    for record in records:
        if mover.validate(record):
            mover.tell(record, state="model check")
            try:
                checked = runs.check([*moved, record], record)
            except DeviceLostError as error:
                raise mover.lost(record, error) from error
            record.model_check = checked.data
            if checked.passed:
                record.state = "moved"
                moved.append(record)
            elif checked.status == "not run":
                record.state, record.reason = "validated", checked.reason
            else:
                culprits.append((record.operator.name,))
                reason = f"the whole model parts from the reference: {checked.reason}"
                mover.fail(record, reason, key=checked.key)
        mover.settle(record)
        if record.state == "failed" and not keep_going:
            break
    return culprits


def bisect(
    mover: Mover, runs: HybridRuns, records: Sequence[OperatorRecord], keep_going: bool
) -> Culprits:
    """All operators pass their own tests first; then the model is checked with all at once.

    Where it fails, halves narrow it down to a smallest group of operators that fails by itself. The
    group stays on the source, and the model is checked with the others.

    Parameters
    ----------
    mover, runs
        Validate operators, and the model.
    records
        The operators to move, in order.
    keep_going
        Go on after an operator that fails its own tests, and narrow down again where the others
        fail as well; else the most that is known to pass moves.

    Returns
    -------
    list
        The groups: names of operators that pass their own tests and fail the model together.
    """
    validated: list[OperatorRecord] = []
    for record in records:
        if mover.validate(record):
            record.state = "validated"
            validated.append(record)
        mover.settle(record)
        if record.state == "failed" and not keep_going:
            break
    placing = _Placing(mover, runs, validated)
    placing.place(keep_going=keep_going)
    return placing.culprits


@dataclass
class _Placing:
    """Moves operators that pass their own tests, as many at once as the model passes with."""

    mover: Mover
    runs: HybridRuns
    candidates: Sequence[OperatorRecord]
    culprits: Culprits = field(default_factory=list)
    _checked: dict[tuple[str, ...], Checked] = field(default_factory=dict)
    _passing: list[tuple[Sequence[OperatorRecord], Checked]] = field(default_factory=list)

    def place(self, *, keep_going: bool) -> None:
        """Find what passes together and settle all candidates."""
        self.runs.promised = 1 if self.candidates else 0
        left = self._fitting()
        for record in left:
            self.mover.tell(record, state="model check")
        while left and not self._check(left).passed:
            if self.culprits and not keep_going:
                break
            group = self._narrow(left)
            left = [record for record in left if record not in group]
        self._settle()

    def _fitting(self) -> list[OperatorRecord]:
        """What fits the device together: all of them, or as many as one by one would have moved."""
        if not self.runs.lack(self.candidates):
            return list(self.candidates)
        chosen: list[OperatorRecord] = []
        for record in self.candidates:
            lack = self.runs.lack([*chosen, record])
            if lack:
                record.reason = lack
                record.model_check = {"status": "not run", "reason": lack}
            else:
                chosen.append(record)
        return chosen

    def _narrow(self, failing: Sequence[OperatorRecord]) -> Sequence[OperatorRecord]:
        """Fail a smallest group of operators that the model fails with."""
        group = minimal_culprits(failing, lambda some: self._check(some).passed)
        checked = self._check(group)
        names = tuple(record.operator.name for record in group)
        self.culprits.append(names)
        # The search, once the group alone is in it, and the others after it.
        self.runs.promised += len(group) * most_checks(len(failing)) + 1
        for record in group:
            others = ", ".join(name for name in names if name != record.operator.name)
            alone = f"together with {others}" if others else "alone"
            record.model_check = checked.data
            reason = (
                f"the whole model parts from the reference with it {alone} on the target: "
                f"{checked.reason}"
            )
            self.mover.fail(record, reason, key=checked.key)
        return group

    def _check(self, group: Sequence[OperatorRecord]) -> Checked:
        names = tuple(record.operator.name for record in group)
        if names not in self._checked:
            try:
                checked = self.runs.check(group, group[-1])
            except DeviceLostError as error:
                before = f"while the model ran with {len(group)} operators on the target: "
                after = "; --strategy one-by-one tells with which of them"
                raise rephrased(error, before=before, after=after) from error
            self._checked[names] = checked
            if checked.passed:
                self._passing.append((group, checked))
        return self._checked[names]

    def _settle(self) -> None:
        """Move the most that is known to pass together without any culprit."""
        clean = [
            (group, checked)
            for group, checked in self._passing
            if all(record.state != "failed" for record in group)
        ]
        moved, checked = max(clean, key=lambda each: len(each[0]), default=((), None))
        for record in moved:
            record.state, record.reason = "moved", ""
            record.model_check = {} if checked is None else checked.data
        for record in self.candidates:
            if record.state == "validated" and not record.reason:
                names = ", ".join(name for group in self.culprits for name in group)
                record.reason = f"the model was not run with it after {names} failed"
            self.mover.tell(record)
