"""Time per operator: a plan's runs, an operator at a time, each by the device's clock.

A run is then many calls in one batch in place of one, with intermediates of its own, so it takes
longer than a run that is not looked at; the kernels are the same and so is what they compute.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tapml.execute.arrays import Array
from tapml.execute.device import DeviceBuffer
from tapml.execute.plan_runner import Output, PlanRunner
from tapml.plan.graph_plan import GraphPlan
from tapml_rpc.remote import RemoteTensor
from tapml_targets.expression import evaluate
from tapml_targets.library import EntryProgram, Library

if TYPE_CHECKING:
    from tapml_rpc.client import Batch, Session
    from tapml_rpc.transport import PendingCall


@dataclass(frozen=True)
class TimedRun:
    """One run of an entry.

    Attributes
    ----------
    entry
        ``prefill``, ``decode``.
    begun, seconds
        By the host's clock: when, after the runner was made, and how long until its outputs came.
    calls
        Operators in their order with the nanoseconds of their kernels, by the device's clock.
    """

    entry: str
    begun: float
    seconds: float
    calls: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class OperatorTime:
    """All calls of an operator in an entry, in nanoseconds; `share` is of the entry's kernels."""

    entry: str
    operator: str
    calls: int
    nanoseconds: int
    share: float


class ProfilingRunner(PlanRunner):
    """A :class:`PlanRunner` that times every operator.

    Attributes
    ----------
    runs
        Those so far.
    """

    def __init__(
        self,
        plan: GraphPlan,
        weights: Mapping[str, Array],
        library: Library,
        session: Session,
    ) -> None:
        self.runs: list[TimedRun] = []
        self._pending: list[tuple[str, PendingCall]] = []
        self._made = time.monotonic()
        super().__init__(plan, weights, library, session)

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See :meth:`PlanRunner.run`."""
        self._pending.clear()
        begun = time.monotonic()
        outputs = super().run(entry, inputs)
        ended = time.monotonic()
        calls = tuple(
            (operator, pending.result().kernel_nanoseconds or 0)
            for operator, pending in self._pending
        )
        self.runs.append(TimedRun(entry, begun - self._made, ended - begun, calls))
        return outputs

    def _run_fixed(
        self, batch: Batch, program: EntryProgram, inputs: Mapping[str, Array], *, timed: bool
    ) -> tuple[list[Output], PendingCall | None]:
        # A recorded program has no time for each of its operators.
        return self._call(batch, program, {}, inputs, timed=timed)

    def _launch(
        self,
        batch: Batch,
        program: EntryProgram,
        tensors: Sequence[RemoteTensor],
        symbols: Mapping[str, int],
        *,
        timed: bool,
    ) -> PendingCall | None:
        held: list[DeviceBuffer] = []
        storages = {
            parameter.name: tensor
            for parameter, tensor in zip(program.parameters, tensors, strict=True)
        }
        for storage in program.storages:
            nbytes = evaluate(storage.nbytes, symbols)
            held.append(self._memory.acquire(nbytes))
            storages[storage.name] = RemoteTensor(held[-1].remote, 0, (nbytes,), "uint8")
        values = {}
        for value in program.values:
            base = storages[value.storage]
            values[value.name] = RemoteTensor(
                base.buffer,
                base.byte_offset + evaluate(value.byte_offset, symbols),
                tuple(evaluate(extent, symbols) for extent in value.shape),
                value.dtype,
            )
        for call in program.calls:
            extra = {name: evaluate(each, symbols) for name, each in call.symbols}
            arguments = [values[name] for name in call.arguments]
            pending = batch.call(self._library, call.operator, arguments, extra, timed=True)
            self._pending.append((call.operator, pending))
        return None


def operator_times(runs: Sequence[TimedRun]) -> list[OperatorTime]:
    """The operators of each entry, the slowest first."""
    found: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        for operator, nanoseconds in run.calls:
            found.setdefault((run.entry, operator), []).append(nanoseconds)
    whole = {
        entry: sum(sum(times) for (each, _), times in found.items() if each == entry)
        for entry in {run.entry for run in runs}
    }
    rows = [
        OperatorTime(entry, operator, len(times), sum(times), sum(times) / (whole[entry] or 1))
        for (entry, operator), times in found.items()
    ]
    order = list(dict.fromkeys(run.entry for run in runs))
    return sorted(rows, key=lambda row: (order.index(row.entry), -row.nanoseconds))


def chrome_trace(runs: Sequence[TimedRun], device: str) -> dict[str, Any]:
    """The runs in Chrome's trace format (chrome://tracing, Perfetto), times in microseconds.

    The host's track has the runs. The device's clock gives durations alone, so on its track the
    operators of a run follow each other from the run's beginning, without the gaps between them.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": name}}
        for track, name in ((1, "runs, by the host's clock"), (2, f"operators on {device}"))
    ]
    for number, run in enumerate(runs):
        at = run.begun * 1e6
        common = {"ph": "X", "pid": 1, "args": {"run": number}}
        events.append({"name": run.entry, "tid": 1, "ts": at, "dur": run.seconds * 1e6, **common})
        for operator, nanoseconds in run.calls:
            duration = nanoseconds / 1e3
            events.append(
                {"name": operator, "cat": run.entry, "tid": 2, "ts": at, "dur": duration, **common}
            )
            at += duration
    return {"displayTimeUnit": "ms", "traceEvents": events}
