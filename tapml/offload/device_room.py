"""Whether what is to run together fits the device; a model may be larger than its memory.

Replayed tests and hybrid runs share the memory and take turns: whoever lacks some asks the other to
give back what it keeps to save time. What does not fit even so is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from tapml.carving.replay_memory import ReplayMemory
from tapml.execute.arrays import Array
from tapml.execute.binding import bind_entry, bind_symbols, entry_of
from tapml.execute.footprint import STATE_COPIES, Footprint, footprint_of, largest_footprint
from tapml.offload.workbench import Workbench
from tapml_targets.expression import evaluate
from tapml_targets.library import Library


@dataclass
class DeviceRoom:
    """The device's memory, as far as a session may use it.

    Attributes
    ----------
    bench
        The open session; its target's limits hold the bound.
    memory
        What replays keep on the device, while there are any.
    release
        Gives back what hybrid runs keep there; None where nobody has to be told.
    """

    bench: Workbench
    memory: ReplayMemory | None = None
    release: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            self.memory.reclaim = self._release_hybrid
        if self.bench.executor.device is not None:
            self.bench.executor.device.limit_bytes = self.limit

    @property
    def limit(self) -> int:
        """Bytes; 0 where the device states none."""
        return self.bench.target.limits.memory_bytes

    @property
    def has_room_for_any(self) -> bool:
        """Whether the model fits with whichever operators are on the target; cheap to ask."""
        return not self.limit or self._largest.total <= self.limit

    def lack_of_hybrid(self) -> str:
        """Why the model cannot run with what is placed now; empty where it can, and has room."""
        if not self.limit:
            return ""
        need = self._largest
        if need.total > self.limit:
            executor = self.bench.executor
            need = footprint_of(executor.program(*inputs) for inputs in self._inputs())
        if need.total > self.limit:
            return self._lack("the model with these operators on the target", need)
        if self.bench.session.held_bytes + need.total > self.limit:
            self._release_replays()
        return ""

    def lack_of_whole(self, library: Library) -> str:
        """Why the linked plan cannot run on the target alone; empty where it can, and has room."""
        if not self.limit:
            return ""
        need = self._whole(library)
        if need.total > self.limit:
            return self._lack("the whole model", need)
        if self.bench.session.held_bytes + need.total > self.limit:
            self._release_replays()
            self._release_hybrid()
        return ""

    def need_of_whole(self, library: Library) -> int:
        """Bytes that the linked plan takes on the target alone."""
        return self._whole(library).total

    def _release_replays(self) -> None:
        if self.memory is not None:
            self.memory.close()

    def _release_hybrid(self) -> None:
        if self.release is None:
            self.bench.executor.release_device()
        else:
            self.release()

    def _lack(self, what: str, need: Footprint) -> str:
        name = self.bench.session.device.name
        return f"{what} was not run: it takes {need} and there are {self.limit} on {name}"

    @cached_property
    def _largest(self) -> Footprint:
        plan = self.bench.imported.plan
        return largest_footprint(
            bind_entry(plan, entry, bind_symbols(entry_of(plan, entry), inputs))
            for entry, inputs in self._inputs()
        )

    def _inputs(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """One run of each entry and length that a model-wise check makes."""
        model = self.bench.model
        lengths = {len(each.prompt.token_ids): each.prompt for each in self.bench.trace.prompts}
        for length, prompt in lengths.items():
            if length > 1:
                yield "prefill", model.prepare_prefill(prompt.token_ids)
        first = self.bench.trace.prompts[0].prompt
        yield "decode", model.prepare_decode(first.token_ids[0], 0)

    def _whole(self, library: Library) -> Footprint:
        """A finished plan's runner keeps weights, the state twice, and what each length takes."""
        plan = self.bench.imported.plan
        tensors = weights = state = 0
        for entry, inputs in self._inputs():
            symbols = bind_symbols(entry_of(plan, entry), inputs)
            bound = bind_entry(plan, entry, symbols)
            storages = [storage.nbytes for storage in library.entries[entry].storages]
            tensors += sum(evaluate(nbytes, symbols) for nbytes in storages)
            ends = {bound.values[name].storage for name in bound.entry.outputs}
            ends |= {bound.values[name].storage for name in bound.entry.inputs}
            tensors += sum(bound.storages[name].nbytes for name in ends)
        weights, state = self._largest.weights, self._largest.state // STATE_COPIES * 2
        return Footprint(weights, state, tensors)
