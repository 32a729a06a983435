"""Algorithm 1 of the paper: operators move from the source to the target, each one validated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tapml.carving.replay_memory import ReplayMemory
from tapml.offload.device_room import DeviceRoom
from tapml.offload.events import Note, OperatorsKnown
from tapml.offload.hybrid_runs import HybridRuns
from tapml.offload.mover import Mover
from tapml.offload.operator_record import OperatorRecord
from tapml.offload.selection import in_order, why_kept
from tapml.offload.settings import RunOptions, Strategy
from tapml.offload.strategies import PROMISES, Culprits, Moves, bisect, one_by_one
from tapml.offload.workbench import Workbench

STRATEGIES: Final[dict[Strategy, Moves]] = {"one-by-one": one_by_one, "bisect": bisect}


@dataclass
class Algorithm:
    """One run of the algorithm over an open session.

    Attributes
    ----------
    bench
        The open session.
    options
        Which operators, in which order, by which strategy.
    records
        What became of each operator, by name in the plan's order.
    memory
        Device memory that replays share.
    culprits
        Operators that pass their own tests and fail the model, in groups that fail together.
    """

    bench: Workbench
    options: RunOptions
    memory: ReplayMemory
    records: dict[str, OperatorRecord]
    culprits: Culprits = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mover = Mover(self.bench, self.memory, len(self.records))
        self.room = DeviceRoom(self.bench, self.memory)
        self.runs = HybridRuns(self.bench, self.room, self.mover.earlier)

    def run(self) -> None:
        """Move what is to move; the journal gets what it took, whatever comes of it.

        Raises
        ------
        DeviceLostError
            If the device is lost.
        """
        plan, options = self.bench.imported.plan, self.options
        self.bench.watcher(OperatorsKnown(tuple(self.records)))
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
            journal = self.bench.journal
            journal.append("strategy", **self.strategy_data())
            journal.append("moved_bytes", **self.runs.moved_data())
            journal.append("verdicts", **verdict_counts(list(self.records.values())))
        self._tell_what_stood()

    def strategy_data(self) -> dict[str, Any]:
        """What the strategy promised and what it took, as JSON data."""
        return {
            "name": self.options.strategy,
            "order": self.options.order,
            "promise": PROMISES[self.options.strategy],
            "promised": self.runs.promised,
            "model_runs": self.runs.count,
            "from_journal": self.runs.kept,
            "culprits": [list(group) for group in self.culprits],
            "memory": {"peak": self.bench.session.peak_bytes, "limit": self.room.limit},
        }

    def _tell_what_stood(self) -> None:
        """How much of an earlier run stands, and why the rest does not."""
        counts = verdict_counts(list(self.records.values()))
        if not counts["kept"] and not counts["again"]:
            return
        self.bench.watcher(Note(resumed(counts)))


def verdict_counts(records: Sequence[OperatorRecord]) -> dict[str, Any]:
    """Operator-wise verdicts: ``kept`` from the journal, made ``again`` and ``why``, ``first``."""
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
    """The counts in a line: ``resumed: 45 verdicts stand, 2 are made again (the kernel)``."""
    text = f"resumed: {counts['kept']} verdicts stand"
    if counts["again"]:
        why = "; ".join(counts["why"])
        text += (
            f", {counts['again']} {'was' if counts['again'] == 1 else 'were'} made again ({why})"
        )
    return text
