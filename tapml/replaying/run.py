"""One carved test on a device: two runs in one batch, and checks of memory afterwards.

A run has two poisons: one *around* the input tensors and one *inside* the memory it writes. The
first run has the first poison in both places, the second run the second, so that an invalid read
changes the result. If the results differ, further runs with one of the two changed find which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from tapml.oracles.carved_case import CarvedCase, weight_keys
from tapml.plan.graph_plan import Operator
from tapml.replaying.memory import POISONS, Arena, Bytes, ReplayMemory
from tapml.verdicts.verdict import Cause, Finding
from tapml_rpc.remote import RemoteBuffer, RemoteLibrary, RemoteTensor
from tapml_rpc.session import Batch
from tapml_rpc.transport import PendingCall, PendingRead
from tapml_targets.dtype import dtype as lookup
from tapml_targets.library import Parameter

Array = NDArray[Any]


RUNS: Final = len(POISONS)
Difference: TypeAlias = Literal["race", "reads around", "reads inside", "unknown"]
"""Reason why runs on the same inputs differ."""


class DeviceRun:
    """Two or more runs of one test on the device."""

    def __init__(
        self,
        operator: Operator,
        test: CarvedCase,
        inputs: Sequence[Array],
        reference: Sequence[Array],
        memory: ReplayMemory,
    ) -> None:
        self.operator = operator
        self.reference = reference
        self.nbytes = 0
        self._test = test
        self._memory = memory
        self._tensors: list[RemoteTensor] = []
        self._weight_keys: dict[str, None] = {}
        self._read: list[tuple[Parameter, Array]] = []
        self._written: list[tuple[Parameter, Array, Array | None]] = []
        self._lay_out(inputs)
        self._reports: list[PendingCall] = []
        self._after: list[Bytes] = []
        self._inputs_after: Bytes = np.zeros(0, np.uint8)
        self._findings: tuple[Finding, ...] | None = None
        # The poison around the tensors that is currently on the device.
        self._around = 0

    def _lay_out(self, inputs: Sequence[Array]) -> None:
        """Split the parameters into weights, inputs and outputs."""
        self._memory.evict()
        remaining = iter(zip(inputs, weight_keys(self._test), strict=True))
        shapes = iter(self.reference)
        places: list[tuple[str, int] | tuple[RemoteBuffer, int]] = []
        values: list[Array] = []
        for parameter in self.operator.parameters:
            if parameter.role == "input":
                content, key = next(remaining)
                values.append(content)
                if key is not None:
                    self._weight_keys[key] = None
                    places.append(self._memory.weight(key, content))
                else:
                    places.append(("read", len(self._read)))
                    self._read.append((parameter, content))
            else:
                before = next(remaining)[0] if parameter.role == "inout" else None
                like = next(shapes)
                values.append(like)
                places.append(("written", len(self._written)))
                self._written.append((parameter, like, before))
        self._read_arena = Arena.of([content.nbytes for _, content in self._read])
        self._written_arena = Arena.of([like.nbytes for _, like, _ in self._written])
        self._sent = self._read_arena.filled(POISONS[0], [content for _, content in self._read])
        self._buffers = {
            "read": self._memory.arena_buffer("read", self._read_arena.nbytes),
            "written": self._memory.arena_buffer("written", self._written_arena.nbytes),
        }
        arenas = {"read": self._read_arena, "written": self._written_arena}
        for parameter, place, array in zip(self.operator.parameters, places, values, strict=True):
            where, position = place
            if isinstance(where, str):
                buffer, offset = self._buffers[where], arenas[where].windows[position].offset
            else:
                buffer, offset = where, position
            self._tensors.append(RemoteTensor(buffer, offset, array.shape, parameter.dtype))

    def execute(self, remote: RemoteLibrary, runs: int = RUNS) -> None:
        """Run with each poison, in one batch, and wait for the result; then repeat up to `runs`.

        The outputs of a further run that differs from the one with its poisons are also kept.
        """
        reads: list[PendingRead] = []
        with self._memory.session.batch() as batch:
            batch.write(self._buffers["read"], self._sent)
            for poison in range(RUNS):
                self._reports.append(self._add_run(batch, remote, poison, poison))
                reads.append(batch.read(self._buffers["written"], self._written_arena.nbytes))
            inputs_read = batch.read(self._buffers["read"], self._read_arena.nbytes)
        self._after = [np.frombuffer(read.result(), np.uint8) for read in reads]
        self._inputs_after = np.frombuffer(inputs_read.result(), np.uint8)
        self._read_arena.surround(self._sent, POISONS[self._around])
        written = self._written_arena.nbytes * (4 if self._keeps_contents else 2)
        self.nbytes = 2 * self._sent.nbytes + written
        for run in range(RUNS, runs):
            poison = run % RUNS
            memory = self._run_again(remote, poison, poison)
            if len(self._after) == RUNS and self._differs(memory, self._after[poison]):
                self._after.append(memory)

    def difference(self, remote: RemoteLibrary) -> Difference:
        """Run a few more times to find why runs differ.

        A kernel whose runs differ with the same poisons has a race (or another nondeterminism).
        Otherwise it reads around its inputs, or inside its outputs and workspaces before it has
        written there.
        """
        if len(self._after) > RUNS:
            return "race"
        first = self._after[0]
        if any(self._differs(self._run_again(remote, 0, 0), first) for _ in range(2)):
            return "race"
        for around, inside, named in ((1, 0, "reads around"), (0, 1, "reads inside")):
            changed = [self._run_again(remote, around, inside) for _ in range(2)]
            if self._differs(*changed):
                return "race"
            if self._differs(changed[0], first):
                return cast("Difference", named)
        return "unknown"

    @property
    def _keeps_contents(self) -> bool:
        return any(before is not None for _, _, before in self._written)

    def _add_run(
        self, batch: Batch, remote: RemoteLibrary, around: int, inside: int
    ) -> PendingCall:
        """Add a run with these poisons to `batch`."""
        if around != self._around:
            buffer = self._buffers["read"]
            self._memory.poison_around(batch, buffer, self._read_arena, POISONS[around])
            for key in self._weight_keys:
                self._memory.poison_around_weight(batch, key)
            self._around = around
        poison, written = POISONS[inside], self._buffers["written"]
        if self._keeps_contents:
            befores = [before for _, _, before in self._written]
            batch.write(written, self._written_arena.filled(poison, befores))
        else:
            batch.fill(written, bytes([poison]), self._written_arena.nbytes)
        return batch.call(
            remote,
            self.operator.name,
            self._tensors,
            self._test.symbols,
            timed=True,
            workspace_poison=bytes([poison]),
        )

    def _run_again(self, remote: RemoteLibrary, around: int, inside: int) -> Bytes:
        """The outputs of one more run; the inputs are already on the device."""
        with self._memory.session.batch() as batch:
            self._add_run(batch, remote, around, inside)
            read = batch.read(self._buffers["written"], self._written_arena.nbytes)
        return np.frombuffer(read.result(), np.uint8)

    def kernel_seconds(self) -> float | None:
        """Time in kernels over the first two runs, as twice the faster one.

        A first launch may include a compilation, and any launch may wait for cores. A test with
        unique shapes has no other tests for comparison.
        """
        times = [report.result().kernel_nanoseconds for report in self._reports]
        known = [nanoseconds for nanoseconds in times if nanoseconds is not None]
        return RUNS * min(known) * 1e-9 if known and len(known) == len(times) else None

    def outputs(self, run: int) -> list[Array]:
        """Raw outputs of the first or the second run, or of the kept run that differs from both."""
        memory = self._after[run]
        return [
            self._written_arena.take(memory, position).view(like.dtype).reshape(like.shape)
            for position, (_, like, _) in enumerate(self._written)
        ]

    def findings(self) -> tuple[Finding, ...]:
        """Findings from memory: overwritten guards, changed inputs, unwritten outputs."""
        if self._findings is None:
            self._findings = (
                *self._guards(),
                *self._workspaces(),
                *self._inputs(),
                *self._unwritten(),
            )
        return self._findings

    @property
    def kept(self) -> int:
        """Number of runs with outputs: two, or three if a further run differs."""
        return len(self._after)

    @property
    def differs(self) -> bool:
        """Whether two runs wrote different outputs."""
        return any(self._differs(memory, self._after[0]) for memory in self._after[1:])

    def differing(self, run: int) -> list[int]:
        """Number of elements per output that differ between a later run and the first."""
        if not self._differs(self._after[run], self._after[0]):
            return [0] * len(self._written)
        return [
            int(_differ(first, second).sum())
            for first, second in zip(self.outputs(0), self.outputs(run), strict=True)
        ]

    def _differs(self, first: Bytes, second: Bytes) -> bool:
        """Whether any output differs between two runs."""
        return not all(
            np.array_equal(
                self._written_arena.take(first, position),
                self._written_arena.take(second, position),
            )
            for position in range(len(self._written))
        )

    def _guards(self) -> Iterable[Finding]:
        for poison, memory in zip(POISONS, self._after, strict=False):
            for position, changed in self._written_arena.damaged(memory, poison):
                last = position == len(self._written) - 1
                place = (
                    f"before {self._written[0][0].name}"
                    if position < 0
                    else f"after {self._written[position][0].name}"
                )
                if not (position < 0 or last):
                    place += f" (before {self._written[position + 1][0].name})"
                yield Finding(
                    Cause.WRITE_OUTSIDE,
                    f"the kernel wrote {changed} bytes outside its outputs, {place}",
                )
                return

    def _workspaces(self) -> Iterable[Finding]:
        damaged = {name for report in self._reports for name in report.result().damaged_guards}
        if damaged:
            names = ", ".join(sorted(damaged))
            yield Finding(Cause.WRITE_OUTSIDE, f"the kernel wrote outside its workspaces {names}")

    def _inputs(self) -> Iterable[Finding]:
        if np.array_equal(self._sent, self._inputs_after):
            return
        for position, (parameter, _) in enumerate(self._read):
            before = self._read_arena.take(self._sent, position)
            after = self._read_arena.take(self._inputs_after, position)
            changed = int((before != after).sum())
            if changed:
                yield Finding(
                    Cause.CHANGED_INPUT,
                    f"the kernel changed {changed} bytes of its input {parameter.name}",
                )
        if self._read_arena.damaged(self._inputs_after, POISONS[RUNS - 1]):
            yield Finding(Cause.WRITE_OUTSIDE, "the kernel wrote around its inputs")

    def _unwritten(self) -> Iterable[Finding]:
        for position, (parameter, like, before) in enumerate(self._written):
            if before is not None or not like.size:
                continue
            width = lookup(parameter.dtype).itemsize
            untouched = np.ones(like.nbytes // width, np.bool_)
            for poison, memory in zip(POISONS, self._after, strict=False):
                element = np.frombuffer(bytes([poison]) * width, f"u{width}")
                written = self._written_arena.take(memory, position).view(element.dtype)
                untouched &= written == element
                if not untouched.any():
                    break
            count = int(untouched.sum())
            if count:
                first = np.unravel_index(int(np.argmax(untouched)), like.shape)
                index = ", ".join(str(int(i)) for i in first)
                yield Finding(
                    Cause.UNWRITTEN,
                    f"{count} of {like.size} elements of {parameter.name} were never written, the "
                    f"first at [{index}]",
                )


def _differ(first: Array, second: Array) -> NDArray[np.bool_]:
    """Elements whose bits differ."""
    bits = f"u{first.dtype.itemsize}"
    return np.asarray(first.view(bits) != second.view(bits))
