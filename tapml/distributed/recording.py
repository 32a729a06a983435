"""What a run records: weights, hidden states, gradients, optimizer state, updates, predictions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from tapml.distributed.engine import Held
from tapml.distributed.optimizers import optimizers_in
from tapml.distributed.packing import tensors_in, to_array
from tapml.distributed.placing import Piece, joined, local_part, piece_of, place_of, reduced

ROOT: Final = "(model)"
INPUT: Final = "(input)"
BUDGET_BYTES: Final = 256 << 20
"""Hidden states of one rank and step; what comes after is not compared."""
# What wrappers of torch put between a parameter's name and the module they wrap.
_WRAPPERS: Final = frozenset(
    {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
)


class Recorder:
    """Collects the records of one rank.

    Parameters
    ----------
    model
        The model before it is distributed; its names are the records' names.
    sends
        Whether this rank sends the values of replicated tensors, or their digests only.
    held
        Reads what the engine's library keeps in its own way
        (:class:`~tapml.distributed.engine.EngineRanks`).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sends: bool,
        held: Callable[[nn.Module], tuple[frozenset[str], list[Held]]] | None = None,
    ) -> None:
        self._held = held
        self._held_before: dict[str, list[torch.Tensor]] = {}
        self.records: list[dict[str, Any]] = []
        self.not_compared: dict[str, str] = {}
        self.root_calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        named = [*model.named_parameters(), *model.named_buffers()]
        self._names = {name: tuple(each.shape) for name, each in named}
        self._sends = sends
        self._listening = False
        self._root_call: int | None = None
        self._seen: dict[str, int] = {}
        # None for what has no place in the whole.
        self._calls: dict[tuple[str, int, int], list[Piece | None]] = {}
        self._bytes = 0
        self._before: dict[str, torch.Tensor] = {}
        self._gradients: dict[str, Any] = {}
        self._backward: dict[str, int] = {}
        self._givers: dict[int, tuple[str, torch.Tensor]] = {}
        self._inputs: dict[str, list[str]] = {}
        self.formats: set[str] = set()
        self._hooks = [model.register_forward_pre_hook(self._enter, with_kwargs=True)]
        for name, module in model.named_modules():
            if not isinstance(module, nn.ModuleList | nn.ModuleDict):
                self._hooks.append(module.register_forward_hook(self._keep_of(name or ROOT)))
        self._hooks.append(model.register_forward_hook(self._leave))

    def keep_out_of(self, compiled: nn.Module) -> None:
        """Listen to the inputs and outputs of a compiled model only.

        Hooks within it would be compiled, and keep operations from being fused.
        """
        self.stop()
        compiled.register_forward_pre_hook(self._enter, with_kwargs=True)
        compiled.register_forward_hook(self._keep_of(ROOT))
        compiled.register_forward_hook(self._leave)
        self.not_compared["hidden states"] = "the model is compiled"

    def stop(self) -> None:
        """Listen to no module of the model any more."""
        while self._hooks:
            self._hooks.pop().remove()

    def watch_backward(self, model: nn.Module) -> None:
        """Note the order in which gradients become known; not for sharded parameters."""
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._note_of(name)
                )

    def _note_of(self, name: str) -> Callable[[torch.Tensor], None]:
        def note(_: torch.Tensor) -> None:
            self._backward.setdefault(name, len(self._backward))

        return note

    def start(self, model: nn.Module) -> None:
        """Record the weights before the first step."""
        for name, tensor in self.tensors(model):
            self._add("start", 0, name, tensor)
        for each in self._shards(model):
            self._add_held("start", 0, each, [to_array(block) for _, block in each.blocks])

    def begin_step(self, model: nn.Module) -> None:
        """Listen to a step."""
        self._calls, self._bytes, self._gradients = {}, 0, {}
        self._seen, self._root_call, self.root_calls = {}, None, []
        self._givers = {}
        self._before = {name: local_part(each).clone() for name, each in self.tensors(model)}
        self._held_before = {
            each.name: [block.detach().clone() for _, block in each.blocks]
            for each in self._shards(model)
        }
        self._listening = True

    def begin_hidden(self) -> None:
        """Listen to the trained model, and to which module takes whose output."""
        self._calls, self._bytes, self._seen, self._root_call = {}, 0, {}, None
        self._givers, self._inputs = {}, {}
        self._listening = True

    def end_hidden(self, step: int, rows: list[int] | None, phase: str = "hidden") -> None:
        """Record the hidden states of the trained model."""
        self._listening = False
        self._record_forward(phase, step, rows)
        for record in self.records:
            if record["phase"] == phase:
                record["inputs"] = self._inputs.get(record["name"], [])

    def take_gradients(self, model: nn.Module, waiting: frozenset[int] = frozenset()) -> None:
        """Keep the gradients as they are, each the first time in a step only.

        Parameters whose identities are in `waiting` are left for the step of another optimizer.
        """
        for name, each in self._parameters(model):
            if name not in self._gradients and id(each) not in waiting:
                gradient = each.grad
                kept = None if gradient is None else reduced(gradient.detach()).clone()
                self._gradients[name] = kept

    def end_step(
        self,
        model: nn.Module,
        optimizer: Any,
        step: int,
        rows: list[int] | None,
        *,
        sends_state: bool = False,
    ) -> None:
        """Record a step; `rows` are the indices of this rank's samples.

        With `sends_state` the state of the optimizer is sent by each rank that has it.
        """
        self._listening = False
        self.take_gradients(model)
        self._record_forward("forward", step, rows)
        for name, gradient in self._gradients.items():
            self._add("gradient", step, name, gradient, order=self._backward.get(name, -1))
        for name, parameter in self._parameters(model):
            for key, value in _state(optimizer, parameter):
                self._add("state", step, f"{name} {key}", value, sends=sends_state)
        learned = {name for name, _ in self._parameters(model)}
        for name, tensor in self.tensors(model):
            before = self._before[name]
            if name in learned:
                self._add_update(step, name, tensor, before)
            else:
                self._add("buffer", step, name, tensor)
        for each in self._shards(model):
            self._add_held_step(step, each)

    @property
    def samples(self) -> int:
        """Samples that this rank's model has got in the step, by the first input that counts them.

        Zero if no input does.
        """
        for (name, _, _), pieces in self._calls.items():
            whole = [each.value for each in pieces if each is not None and not each.shape]
            if name == INPUT and len(whole) == len(pieces) and all(each.ndim for each in whole):
                return sum(each.shape[0] for each in whole)
        return 0

    def _samples_of_calls(self, rows: list[int] | None) -> int:
        """How many samples each call of the model gets, if all of them; 0 for micro-batches."""
        count = 0 if rows is None else len(rows)
        inputs = [each for (name, _, _), each in self._calls.items() if name == INPUT]
        whole = any(
            all(each is not None and each.value.shape[:1] == (count,) for each in calls)
            for calls in inputs
        )
        return count if whole else 0

    def predictions(
        self, values: list[Any], step: int, rows: list[int] | None, *, by_calls: bool = False
    ) -> None:
        """Record what the trained model predicts for this rank's samples, call by call.

        With `by_calls` these are the calls of the last step, which only then get the samples of
        one device's if all inputs do.
        """
        before = len(self.records)
        leaves = [list(tensors_in(value)) for value in values]
        for index in range(min(map(len, leaves), default=0)):
            name = "(prediction)" if len(leaves[0]) == 1 else f"(prediction)[{index}]"
            pieces = [piece_of(each[index]) for each in leaves]
            self._add_rows("prediction", step, name, pieces, rows, index)
        for record in self.records[before:]:
            record["inputs"] = [INPUT] if by_calls else []

    def _enter(self, _: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self._listening or _in_backward():
            return
        self._root_call = 0 if self._root_call is None else self._root_call + 1
        self._seen = {}
        self.root_calls.append((args, named))
        for index, tensor in enumerate(tensors_in([args, named])):
            self._calls.setdefault((INPUT, index, 0), []).append(piece_of(tensor))

    def _leave(self, *_: Any) -> None:
        if self._listening and not _in_backward():
            self._seen = {}

    def _keep_of(self, name: str) -> Callable[..., None]:
        def keep(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not self._listening or _in_backward():
                return
            self._note_inputs(name, args, output)
            occurrence = self._seen.get(name, 0)
            self._seen[name] = occurrence + 1
            for index, tensor in enumerate(tensors_in(leaves_of(output))):
                self._bytes += tensor.nbytes
                if self._bytes > BUDGET_BYTES:
                    self.not_compared["hidden states"] = f"more than {BUDGET_BYTES >> 20} MiB"
                    return
                if tensor.is_floating_point():
                    self.formats.add(str(tensor.dtype).removeprefix("torch."))
                key = name, index, occurrence
                self._calls.setdefault(key, []).append(piece_of(tensor))

        return keep

    def _note_inputs(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        """Whose outputs a module takes: known by identity, else what was computed before it."""
        known = [self._givers[id(each)][0] for each in tensors_in(args) if id(each) in self._givers]
        last = [next(reversed(self._givers.values()))[0]] if self._givers else []
        self._inputs.setdefault(name, list(dict.fromkeys(known)) or last)
        for tensor in tensors_in(leaves_of(output)):
            # Kept alive, so that no other tensor gets its identity.
            self._givers.pop(id(tensor), None)
            self._givers[id(tensor)] = name, tensor

    def _record_forward(self, phase: str, step: int, rows: list[int] | None) -> None:
        several = {(name, index) for name, index, call in self._calls if call}
        wide = {name for name, index, _ in self._calls if index}
        for order, ((name, index, call), pieces) in enumerate(self._calls.items()):
            label = f"{name}[{index}]" if name in wide else name
            label += f" call {call + 1}" if (name, index) in several else ""
            self._add_rows(phase, step, label, pieces, rows, order)

    def _add_rows(
        self,
        phase: str,
        step: int,
        name: str,
        pieces: list[Piece | None],
        rows: list[int] | None,
        order: int,
    ) -> None:
        """Add a tensor of samples in pieces, one for each micro-batch."""
        known = [each for each in pieces if each is not None]
        piece = joined(known, self._samples_of_calls(rows)) if known else None
        if len(known) < len(pieces):
            self.not_compared[name] = "its shards are not contiguous"
        elif rows is None:
            self.not_compared[name] = "part() gives samples that are not in the batch"
        elif piece is None or not piece.value.ndim:
            self.not_compared[name] = "its first dimension does not count samples"
        else:
            count = (piece.shape or piece.value.shape)[0]
            if not rows:
                self.not_compared[name] = "this rank has no samples"
                return
            if count % len(rows):
                self.not_compared[name] = "its first dimension does not count samples"
                return
            record = self._record(phase, step, name, to_array(piece.value), order)
            record |= {"placement": "rows", "rows": rows, "summed": list(piece.summed)}
            record |= {"shape": list(piece.shape), "offset": list(piece.offset)}
            self.records.append(record)

    def _add(
        self,
        phase: str,
        step: int,
        name: str,
        tensor: torch.Tensor | None,
        order: int = -1,
        *,
        sends: bool = False,
    ) -> None:
        if tensor is None:
            record = self._record(phase, step, name, None, order)
            self.records.append({**record, "placement": "whole"})
            return
        place = place_of(tensor)
        if place is None:
            self.not_compared[name] = "its shards are not contiguous"
            return
        value = self._shaped(name, to_array(local_part(tensor)))
        self._add_placed(self._record(phase, step, name, value, order), place, sends=sends)

    def _add_update(self, step: int, name: str, tensor: torch.Tensor, before: torch.Tensor) -> None:
        place = place_of(tensor)
        if place is None:
            self.not_compared[name] = "its shards are not contiguous"
            return
        after, earlier = (
            self._shaped(name, to_array(each)) for each in (local_part(tensor), before)
        )
        if after.dtype.kind == "f":
            # The difference of two float32 numbers is exact in float64 or nearly so.
            changed = after.astype(np.float64) - earlier.astype(np.float64)
        else:
            changed = (after != earlier).astype(np.float64)
        record = self._record("update", step, name, changed, -1)
        record["weight"] = _largest(after)
        self._add_placed(record, place)

    def _add_held_step(self, step: int, held: Held) -> None:
        """The update of what a library keeps, and its gradient if that follows from the update."""
        after = [to_array(block) for _, block in held.blocks]
        changed = [
            now.astype(np.float64) - to_array(before).astype(np.float64)
            for now, before in zip(after, self._held_before[held.name], strict=True)
        ]
        weight = max(map(_largest, after), default=0.0)
        self._add_held("update", step, held, changed, weight)
        if held.rate:
            gradient = [each / -held.rate for each in changed]
            self._add_held("gradient", step, held, gradient, weight / held.rate)
        else:
            self.not_compared[held.name] = "its gradient is not known: the library takes the step"

    def _add_held(
        self, phase: str, step: int, held: Held, values: list[NDArray[Any]], weight: float = 0.0
    ) -> None:
        offsets = [offset for offset, _ in held.blocks]
        if len(values) == 1:
            record = self._record(phase, step, held.name, values[0], -1)
            place: dict[str, Any] = {"placement": "shard", "offset": list(offsets[0])}
        else:
            joined = np.concatenate([each.ravel() for each in values])
            record = self._record(phase, step, held.name, joined, -1)
            blocks = [
                [list(offset), list(each.shape)]
                for offset, each in zip(offsets, values, strict=True)
            ]
            place = {"placement": "blocks", "blocks": blocks}
        record["weight"] = weight
        self.records.append({**record, **place, "shape": list(held.shape)})

    def _shaped(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        """A value as one device has it: a library may keep whole parameters flat."""
        shape = self._names.get(name, value.shape)
        flat = self._held is not None and value.ndim == 1 and value.size == math.prod(shape)
        return value.reshape(shape) if flat else value

    def _add_placed(
        self, record: dict[str, Any], place: Mapping[str, Any], *, sends: bool = False
    ) -> None:
        if place["placement"] == "whole" and not self._sends and not sends:
            record["value"] = None
        self.records.append({**record, **place})

    def _record(
        self, phase: str, step: int, name: str, value: NDArray[Any] | None, order: int
    ) -> dict[str, Any]:
        return {
            "phase": phase,
            "step": step,
            "name": name,
            "order": len(self.records) if order < 0 else order,
            "value": value,
            "digest": "" if value is None else digest(value),
        }

    def _parameters(self, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        held, _ = self._read_held(model)
        for name, parameter in model.named_parameters():
            own = self._reference_name(name)
            if own not in held:
                yield own, parameter

    def tensors(self, model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers of a distributed model, by the names of the plain one."""
        yield from self._parameters(model)
        for name, tensor in model.named_buffers():
            own = self._reference_name(name)
            if self._held is None or own in self._names:
                # Such a library makes buffers for itself.
                yield own, tensor

    def _shards(self, model: nn.Module) -> list[Held]:
        return [each for each in self._read_held(model)[1] if each.blocks]

    def _read_held(self, model: nn.Module) -> tuple[frozenset[str], list[Held]]:
        return (frozenset(), []) if self._held is None else self._held(model)

    def _reference_name(self, name: str) -> str:
        if name in self._names:
            return name
        bare = name.removeprefix("module.")
        if bare in self._names:
            return bare
        return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def digest(value: NDArray[Any]) -> str:
    """Hash of a tensor's type, shape and bits."""
    header = f"{value.dtype.str} {value.shape} ".encode()
    return hashlib.blake2b(header + value.tobytes(), digest_size=16).hexdigest()


def _in_backward() -> bool:
    """Whether backward runs: checkpointed modules are then called once more."""
    return bool(torch._C._current_graph_task_id() != -1)


def leaves_of(output: Any) -> Any:
    """An output as containers; data classes of model outputs are mappings already."""
    if isinstance(output, PackedSequence):
        return ()  # Sorted by length: no dimension of its tensors counts samples.
    if isinstance(output, tuple | list):
        return [leaves_of(each) for each in output]
    fields = getattr(output, "__dataclass_fields__", None)
    return output if fields is None else {name: getattr(output, name) for name in fields}


def _state(optimizer: Any, parameter: nn.Parameter) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of the optimizer's state of one parameter."""
    for each in optimizers_in(optimizer):
        state = getattr(each, "state", None)
        found = state.get(parameter, {}) if isinstance(state, Mapping) else {}
        for key in sorted(found):
            if isinstance(found[key], torch.Tensor):
                yield key, found[key]


def _largest(value: NDArray[Any]) -> float:
    return float(np.max(np.abs(value), initial=0.0)) if value.dtype.kind in "fiu" else 0.0
