"""Algorithm 1 of the paper: migrate operators from the source to the target, validating each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tapml.offload.context import MigrationContext
from tapml.offload.device_room import DeviceRoom
from tapml.offload.hybrid_runs import HybridRuns
from tapml.offload.mover import Mover
from tapml.offload.strategies import PROMISES, Culprits, Moves, bisect, one_by_one
from tapml.replaying.memory import ReplayMemory
from tapml.runs.events import Note
from tapml.session.events import OperatorsKnown
from tapml.session.operator_record import OperatorRecord
from tapml.session.selection import in_order, why_kept
from tapml.session.settings import RunOptions, Strategy

STRATEGIES: Final[dict[Strategy, Moves]] = {"one-by-one": one_by_one, "bisect": bisect}


@dataclass
class Algorithm:
    """One run of the algorithm over an open session.

    Attributes
    ----------
    context
        The open session.
    options
        Selection and order of operators, and the strategy.
    memory
        Device memory that replays share.
    records
        The state of each operator, by name in the plan's order.
    culprits
        Groups of operators that pass their own tests but together fail the model.
    """

    context: MigrationContext
    options: RunOptions
    memory: ReplayMemory
    records: dict[str, OperatorRecord]
    culprits: Culprits = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mover = Mover(self.context, self.memory, len(self.records), self.options.pace)
        self.room = DeviceRoom(self.context, self.memory)
        self.runs = HybridRuns(self.context, self.room, self.mover.earlier)

    def run(self) -> None:
        """Migrate the selected operators, and journal the effort even if that fails.

        Raises
        ------
        DeviceLostError
            If the device is lost.
        """
        plan, options = self.context.imported.plan, self.options
        self.context.watcher(OperatorsKnown(tuple(self.records)))
        to_move = []
        for name in in_order(plan, options.order):
            record = self.records[name]
            reason = why_kept(name, options)
            if reason:
                record.state, record.reason = "kept", reason
                self.mover.settle(record)
            else:
                to_move.append(record)
        strategy = STRATEGIES[options.strategy]
        try:
            self.culprits = strategy(self.mover, self.runs, to_move, options.keep_going)
        finally:
            journal = self.context.journal
            journal.append("strategy", **self.strategy_data())
            journal.append("moved_bytes", **self.runs.moved_data())
            journal.append("verdicts", **verdict_counts(list(self.records.values())))
        self._report_reused()

    def strategy_data(self) -> dict[str, Any]:
        """The strategy's promised and actual effort, as JSON data."""
        return {
            "name": self.options.strategy,
            "order": self.options.order,
            "promise": PROMISES[self.options.strategy],
            "promised": self.runs.promised,
            "model_runs": self.runs.count,
            "from_journal": self.runs.kept,
            "culprits": [list(group) for group in self.culprits],
            "memory": {"peak": self.context.session.peak_bytes, "limit": self.room.limit},
        }

    def _report_reused(self) -> None:
        counts = verdict_counts(list(self.records.values()))
        if counts["kept"] or counts["again"]:
            self.context.watcher(Note(resumed(counts)))


def verdict_counts(records: Sequence[OperatorRecord]) -> dict[str, Any]:
    """Numbers of verdicts: ``kept`` (from the journal), ``again`` and ``why``, ``first``."""
    again = [record for record in records if record.again]
    kept = sum(bool(record.replay.get("reused")) for record in records)
    made = sum(bool(record.replay) for record in records)
    return {
        "kept": kept,
        "again": len(again),
        "first": made - kept - len(again),
        "why": dict(Counter(line for record in again for line in record.again)),
    }


def resumed(counts: Mapping[str, Any]) -> str:
    """The counts in a line.

    >>> resumed({"kept": 45, "again": 2, "why": {"the kernel": 2}})
    'resumed: 45 verdicts reused, 2 made again (the kernel)'
    """
    text = f"resumed: {counts['kept']} verdicts reused"
    if counts["again"]:
        text += f", {counts['again']} made again ({'; '.join(counts['why'])})"
    return text
