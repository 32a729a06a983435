"""Whether a run fits the device's memory, which may be smaller than the model.

Replays and hybrid runs share the memory. If one needs more, the other releases its cached buffers.
If the memory is still too small, the run is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from tapml.execute.arrays import Array
from tapml.execute.binding import bind_entry, bind_symbols, entry_of
from tapml.execute.footprint import Footprint, footprint_of, largest_footprint
from tapml.execute.plan_runner import resident_state_bytes
from tapml.offload.context import MigrationContext
from tapml.replaying.memory import ReplayMemory
from tapml_targets.expression import evaluate
from tapml_targets.library import Library


@dataclass
class DeviceRoom:
    """The device memory that a session may use.

    Attributes
    ----------
    context
        The open session; its target's limits have the maximum.
    memory
        Cached buffers of replays, if any.
    release
        Releases the buffers of hybrid runs; None to release the executor's.
    """

    context: MigrationContext
    memory: ReplayMemory | None = None
    release: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            self.memory.reclaim = self._release_hybrid
        if self.context.executor.device is not None:
            self.context.executor.device.limit_bytes = self.limit

    @property
    def limit(self) -> int:
        """Maximum bytes; 0 if the device does not state them."""
        return self.context.target.limits.memory_bytes

    @property
    def has_room_for_any(self) -> bool:
        """Whether the model fits with any placement of operators; cheap to compute."""
        return not self.limit or self._largest.total <= self.limit

    def hybrid_shortfall(self) -> str:
        """Why the model cannot run with the current placement; empty if it can.

        Releases the replays' memory if that is necessary.
        """
        if not self.limit:
            return ""
        need = self._largest
        if need.total > self.limit:
            executor = self.context.executor
            need = footprint_of(executor.program(*inputs) for inputs in self._inputs())
        if need.total > self.limit:
            return self._shortfall_text("the model with these operators on the target", need)
        if self.context.session.held_bytes + need.total > self.limit:
            self._release_replays()
        return ""

    def memory_shortfall(self, library: Library) -> str:
        """Why the linked plan cannot run on the target; empty if it can.

        Releases the memory of replays and hybrid runs if that is necessary.
        """
        if not self.limit:
            return ""
        need = self._whole(library)
        if need.total > self.limit:
            return self._shortfall_text("the complete model", need)
        if self.context.session.held_bytes + need.total > self.limit:
            self._release_replays()
            self._release_hybrid()
        return ""

    def required_bytes(self, library: Library) -> int:
        """Bytes that the linked plan needs on the target."""
        return self._whole(library).total

    def _release_replays(self) -> None:
        if self.memory is not None:
            self.memory.close()

    def _release_hybrid(self) -> None:
        if self.release is None:
            self.context.executor.release_device()
        else:
            self.release()

    def _shortfall_text(self, what: str, need: Footprint) -> str:
        name = self.context.session.device.name
        return f"{what} was not run: it needs {need}, but {name} has {self.limit}"

    @cached_property
    def _largest(self) -> Footprint:
        plan = self.context.imported.plan
        return largest_footprint(
            bind_entry(plan, entry, bind_symbols(entry_of(plan, entry), inputs))
            for entry, inputs in self._inputs()
        )

    def _inputs(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """One input for each entry and length of a model-wise check."""
        return self.context.workload.lengths([each.case for each in self.context.trace.cases])

    def _whole(self, library: Library) -> Footprint:
        """What a plan runner keeps: weights, state, and the tensors of each length."""
        plan = self.context.imported.plan
        tensors = 0
        for entry, inputs in self._inputs():
            symbols = bind_symbols(entry_of(plan, entry), inputs)
            bound = bind_entry(plan, entry, symbols)
            storages = [storage.nbytes for storage in library.entries[entry].storages]
            tensors += sum(evaluate(nbytes, symbols) for nbytes in storages)
            ends = {bound.values[name].storage for name in bound.entry.outputs}
            ends |= {bound.values[name].storage for name in bound.entry.inputs}
            tensors += sum(bound.storages[name].nbytes for name in ends)
        return Footprint(self._largest.weights, resident_state_bytes(plan, library), tensors)
