"""When the model is checked: after every operator, or with all of them and by bisection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tapml.offload.culprits import minimal_culprits, most_checks
from tapml.offload.hybrid_runs import Checked, HybridRuns
from tapml.offload.mover import Mover
from tapml.replaying.failure_text import with_context
from tapml.session.operator_record import OperatorRecord
from tapml.session.settings import Strategy
from tapml.verdicts.verdict import Cause
from tapml_targets.errors import DeviceLostError

Culprits: TypeAlias = list[tuple[str, ...]]
Moves: TypeAlias = Callable[[Mover, HybridRuns, Sequence[OperatorRecord], bool], Culprits]

PROMISES: Final[dict[Strategy, str]] = {
    "one-by-one": "one model-wise run for each operator to migrate",
    "bisect": "one model-wise run if the model passes, and at most ceil(log2(N)) + 2 more for "
    "each faulty operator",
}


def one_by_one(
    mover: Mover, runs: HybridRuns, records: Sequence[OperatorRecord], keep_going: bool
) -> Culprits:
    """Algorithm 1 as in the paper: the model is checked after each operator.

    Parameters
    ----------
    mover, runs
        Validate operators, and the model.
    records
        The operators to migrate, in order.
    keep_going
        Leave a failed operator on the source and continue, instead of stopping.

    Returns
    -------
    list
        Names of operators that pass their own tests but fail the model, in groups of one.
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
                reason = f"the complete model differs from the reference: {checked.reason}"
                mover.fail(record, Cause.WHOLE_MODEL, reason, key=checked.key)
        mover.settle(record)
        if record.state == "failed" and not keep_going:
            break
    return culprits


def bisect(
    mover: Mover, runs: HybridRuns, records: Sequence[OperatorRecord], keep_going: bool
) -> Culprits:
    """Validate all operators by their own tests, then check the model with all of them at once.

    If the model fails, bisection finds a minimal group of operators that fails by itself. It stays
    on the source, and the model is checked with the others.

    Parameters
    ----------
    mover, runs
        Validate operators, and the model.
    records
        The operators to migrate, in order.
    keep_going
        Continue after an operator that fails its own tests, and bisect again if the others fail,
        too. Otherwise the largest group that is known to pass is migrated.

    Returns
    -------
    list
        Groups of operators that pass their own tests but together fail the model, as names.
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
    """Migrates the largest group of validated operators with which the model passes."""

    mover: Mover
    runs: HybridRuns
    candidates: Sequence[OperatorRecord]
    culprits: Culprits = field(default_factory=list)
    _checked: dict[tuple[str, ...], Checked] = field(default_factory=dict)
    _passing: list[tuple[Sequence[OperatorRecord], Checked]] = field(default_factory=list)

    def place(self, *, keep_going: bool) -> None:
        """Find a group that passes, and settle all candidates."""
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
        """The candidates that fit the device together, chosen greedily in order."""
        if not self.runs.shortfall(self.candidates):
            return list(self.candidates)
        chosen: list[OperatorRecord] = []
        for record in self.candidates:
            lack = self.runs.shortfall([*chosen, record])
            if lack:
                record.reason = lack
                record.model_check = {"status": "not run", "reason": lack}
            else:
                chosen.append(record)
        return chosen

    def _narrow(self, failing: Sequence[OperatorRecord]) -> Sequence[OperatorRecord]:
        """Find a minimal group with which the model fails, and record its failure."""
        group = minimal_culprits(failing, lambda some: self._check(some).passed)
        checked = self._check(group)
        names = tuple(record.operator.name for record in group)
        self.culprits.append(names)
        # The search, including the group alone, and one check of the others.
        self.runs.promised += len(group) * most_checks(len(failing)) + 1
        for record in group:
            others = ", ".join(name for name in names if name != record.operator.name)
            alone = f"together with {others}" if others else "alone"
            record.model_check = checked.data
            reason = (
                f"the complete model differs from the reference with it {alone} on the target: "
                f"{checked.reason}"
            )
            self.mover.fail(record, Cause.WHOLE_MODEL, reason, key=checked.key)
        return group

    def _check(self, group: Sequence[OperatorRecord]) -> Checked:
        names = tuple(record.operator.name for record in group)
        if names not in self._checked:
            try:
                checked = self.runs.check(group, group[-1])
            except DeviceLostError as error:
                before = f"while the model ran with {len(group)} operators on the target: "
                after = "; --strategy one-by-one finds out with which of them"
                raise with_context(error, before=before, after=after) from error
            self._checked[names] = checked
            if checked.passed:
                self._passing.append((group, checked))
        return self._checked[names]

    def _settle(self) -> None:
        """Migrate the largest passing group without any culprit."""
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
