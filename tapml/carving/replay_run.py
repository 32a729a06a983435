"""One carved test on a device: two runs in one batch, and what memory says afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.carving.replay_memory import POISONS, Arena, Bytes, ReplayMemory
from tapml.compare.oracle import CarvedCase, weight_keys
from tapml.graph.plan import Operator
from tapml_rpc.pending import PendingCall, PendingRead
from tapml_rpc.remote import RemoteBuffer, RemoteLibrary, RemoteTensor
from tapml_targets.dtype import dtype as lookup
from tapml_targets.library import Parameter

Array = NDArray[Any]


class DeviceRun:
    """One test on the device, twice."""

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
        self._read: list[tuple[Parameter, Array]] = []
        self._written: list[tuple[Parameter, Array, Array | None]] = []
        self._lay_out(inputs)
        self._reports: list[PendingCall] = []
        self._after: list[Bytes] = []
        self._inputs_after: Bytes = np.zeros(0, np.uint8)
        self._findings: tuple[str, ...] | None = None

    def _lay_out(self, inputs: Sequence[Array]) -> None:
        """Sort the parameters into weights, tensors read and tensors written."""
        remaining = iter(zip(inputs, weight_keys(self._test), strict=True))
        shapes = iter(self.reference)
        places: list[tuple[str, int] | tuple[RemoteBuffer, int]] = []
        values: list[Array] = []
        for parameter in self.operator.parameters:
            if parameter.role == "input":
                content, key = next(remaining)
                values.append(content)
                if key is not None:
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

    def execute(self, remote: RemoteLibrary) -> None:
        """Send everything as one batch and wait for its answer."""
        befores = [before for _, _, before in self._written]
        keeps_contents = any(before is not None for before in befores)
        reads: list[PendingRead] = []
        with self._memory.session.batch() as batch:
            batch.write(self._buffers["read"], self._sent)
            for poison in POISONS:
                if keeps_contents:
                    filled = self._written_arena.filled(poison, befores)
                    batch.write(self._buffers["written"], filled)
                else:
                    batch.fill(
                        self._buffers["written"], bytes([poison]), self._written_arena.nbytes
                    )
                self._reports.append(
                    batch.call(
                        remote,
                        self.operator.name,
                        self._tensors,
                        self._test.symbols,
                        timed=True,
                        workspace_poison=bytes([poison]),
                    )
                )
                reads.append(batch.read(self._buffers["written"], self._written_arena.nbytes))
            inputs_read = batch.read(self._buffers["read"], self._read_arena.nbytes)
        self._after = [np.frombuffer(read.result(), np.uint8) for read in reads]
        self._inputs_after = np.frombuffer(inputs_read.result(), np.uint8)
        written = self._written_arena.nbytes * (4 if keeps_contents else 2)
        self.nbytes = 2 * self._sent.nbytes + written

    def kernel_seconds(self) -> float | None:
        """Time in kernels over both runs."""
        times = [report.result().kernel_nanoseconds for report in self._reports]
        known = [nanoseconds for nanoseconds in times if nanoseconds is not None]
        return sum(known) * 1e-9 if len(known) == len(times) else None

    def outputs(self, run: int) -> list[Array]:
        """Raw outputs of the first or the second run."""
        memory = self._after[run]
        return [
            self._written_arena.take(memory, position).view(like.dtype).reshape(like.shape)
            for position, (_, like, _) in enumerate(self._written)
        ]

    def findings(self) -> tuple[str, ...]:
        """What memory says: guards written, inputs changed, outputs left as they were."""
        if self._findings is None:
            self._findings = (
                *self._guards(),
                *self._workspaces(),
                *self._inputs(),
                *self._unwritten(),
            )
        return self._findings

    def differing(self) -> list[int]:
        """Per output, how many elements differ between the two runs."""
        if np.array_equal(self._interior(0), self._interior(1)):
            return [0] * len(self._written)
        return [
            int(_differ(first, second, parameter).sum())
            for first, second, (parameter, _, _) in zip(
                self.outputs(0), self.outputs(1), self._written, strict=True
            )
        ]

    def _interior(self, run: int) -> Bytes:
        if len(self._written) == 1:
            return self._written_arena.take(self._after[run], 0)
        parts = [
            self._written_arena.take(self._after[run], position)
            for position in range(len(self._written))
        ]
        return np.concatenate(parts)

    def _guards(self) -> Iterable[str]:
        for poison, memory in zip(POISONS, self._after, strict=True):
            for position, changed in self._written_arena.damaged(memory, poison):
                last = position == len(self._written) - 1
                place = (
                    f"before {self._written[0][0].name}"
                    if position < 0
                    else f"after {self._written[position][0].name}"
                )
                if not (position < 0 or last):
                    place += f" (before {self._written[position + 1][0].name})"
                yield f"the kernel wrote {changed} bytes outside its outputs, {place}"
                return

    def _workspaces(self) -> Iterable[str]:
        damaged = {name for report in self._reports for name in report.result().damaged_guards}
        if damaged:
            yield f"the kernel wrote outside its workspaces {', '.join(sorted(damaged))}"

    def _inputs(self) -> Iterable[str]:
        if np.array_equal(self._sent, self._inputs_after):
            return
        for position, (parameter, _) in enumerate(self._read):
            before = self._read_arena.take(self._sent, position)
            after = self._read_arena.take(self._inputs_after, position)
            changed = int((before != after).sum())
            if changed:
                yield f"the kernel changed {changed} bytes of its input {parameter.name}"
        if self._read_arena.damaged(self._inputs_after, POISONS[0]):
            yield "the kernel wrote around its inputs"

    def _unwritten(self) -> Iterable[str]:
        for position, (parameter, like, before) in enumerate(self._written):
            if before is not None or not like.size:
                continue
            width = lookup(parameter.dtype).itemsize
            untouched = np.ones(like.nbytes // width, np.bool_)
            for poison, memory in zip(POISONS, self._after, strict=True):
                element = np.frombuffer(bytes([poison]) * width, f"u{width}")
                written = self._written_arena.take(memory, position).view(element.dtype)
                untouched &= written == element
                if not untouched.any():
                    break
            count = int(untouched.sum())
            if count:
                first = np.unravel_index(int(np.argmax(untouched)), like.shape)
                index = ", ".join(str(int(i)) for i in first)
                yield (
                    f"{count} of {like.size} elements of {parameter.name} were never written, the "
                    f"first at [{index}]"
                )


def _differ(first: Array, second: Array, parameter: Parameter) -> NDArray[np.bool_]:
    """Elements whose bits differ."""
    bits = f"u{first.dtype.itemsize}"
    return np.asarray(first.view(bits) != second.view(bits))
