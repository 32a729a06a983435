"""The variables of a run: parameters and buffers of its models, and what its optimizers hold.

A change is found by the digest of all bytes, because ``tensor.data`` and foreign kernels change
a parameter without its version counter.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tapml.invariants.record import CHANGE, STATE, Value
from tapml.invariants.recorder import Recorder
from tapml.invariants.summaries import change_mark, digest, dtype_name
from tapml_targets.errors import InputError


@dataclass(frozen=True)
class Variable:
    """A parameter or buffer under the name it has in its model.

    Attributes
    ----------
    kind
        ``Parameter`` or ``Buffer``.
    in_model, in_optimizer
        Whether a model that ran holds it, and whether an optimizer does.
    """

    name: str
    kind: str
    tensor: torch.Tensor
    in_model: bool
    in_optimizer: bool


class Variables:
    """Finds the variables of the models that ran and of all optimizers.

    Both are held weakly: a model that the script replaced is not one of its models any more.

    Parameters
    ----------
    exact
        Digest every byte, before and after each step. Without it, an order-insensitive hash
        tells changes, and what changed between two steps counts as changed by the second.
    """

    def __init__(self, *, exact: bool = True) -> None:
        self._exact = exact
        self._gradients: dict[int, tuple[str, int, int]] = {}
        self._after: dict[str, str] = {}
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._digests = WeakIdKeyDictionary()
        self._numbers = WeakIdKeyDictionary()
        self._numbered = 0

    def add_model(self, model: torch.nn.Module) -> None:
        """A model ran as a whole; parts of known models are not models of their own."""
        known = self.models()
        if any(part is model for each in known for part in each.modules()):
            return
        parts = {id(part) for part in model.modules()}
        self._models = [weakref.ref(each) for each in known if id(each) not in parts]
        self._models.append(weakref.ref(model))

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """The script made an optimizer."""
        if not any(each() is optimizer for each in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def add(self, *parts: torch.nn.Module | torch.optim.Optimizer) -> None:
        """Models and optimizers that exist already. Raises InputError for anything else."""
        for part in parts:
            if isinstance(part, torch.nn.Module):
                self.add_model(part)
            elif isinstance(part, torch.optim.Optimizer):
                self.add_optimizer(part)
            else:
                raise InputError(f"watch takes modules and optimizers, not {type(part).__name__}")

    def models(self) -> list[torch.nn.Module]:
        """The models that ran and still exist."""
        return [model for each in self._models if (model := each()) is not None]

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that still exist."""
        return [found for each in self._optimizers if (found := each()) is not None]

    def all(self, *, buffers: bool = True) -> Iterator[Variable]:
        """Every variable once; a tied parameter under each of its names."""
        held = {
            id(parameter): f"{place}.{index}"
            for place, optimizer in enumerate(self.optimizers())
            for index, parameter in enumerate(
                each for group in optimizer.param_groups for each in group["params"]
            )
        }
        parameters = {
            id(parameter): parameter
            for optimizer in self.optimizers()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        seen = set()
        for place, model in enumerate(self.models()):
            prefix = f"{type(model).__name__}." if place else ""
            for name, parameter in model.named_parameters(remove_duplicate=False):
                seen.add(id(parameter))
                shown = prefix + name.removeprefix("module.")
                yield Variable(shown, "Parameter", parameter, True, id(parameter) in held)
            if buffers:
                for name, buffer in model.named_buffers():
                    shown = prefix + name.removeprefix("module.")
                    yield Variable(shown, "Buffer", buffer, True, False)
        for key, parameter in parameters.items():
            if key not in seen:
                yield Variable(f"optimizer.{held[key]}", "Parameter", parameter, False, True)

    def number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor in this process: the same as long as it lives."""
        found: int | None = self._numbers.get(tensor)  # type: ignore[no-untyped-call]
        if found is None:
            found = self._numbers[tensor] = self._numbered
            self._numbered += 1
        return found

    def gradients(self) -> dict[str, tuple[str, int, int]]:
        """Per parameter: its gradient is ``none``, ``zero`` or ``nonzero``; identity, version."""
        self._gradients.clear()
        return {each.name: self._gradient(each.tensor) for each in self.all(buffers=False)}

    def _gradient(self, tensor: torch.Tensor) -> tuple[str, int, int]:
        # Looked at once between two calls that change gradients.
        found = self._gradients.get(id(tensor))
        if found is None:
            found = self._gradients[id(tensor)] = _gradient(tensor)
        return found

    def gradient_state(self, tensors: Iterable[torch.Tensor] | None = None) -> str:
        """``nonzero`` if any gradient is, else ``zero`` if there is one, else ``none``.

        Of some parameters, or of all.
        """
        if tensors is None:
            tensors = [each.tensor for each in self.all(buffers=False)]
        found = {self._gradient(each)[0] for each in tensors}
        return next((state for state in ("nonzero", "zero") if state in found), "none")

    def values(self) -> dict[str, str]:
        """The digest of each parameter."""
        if self._exact or not self._after:
            return {each.name: self._digest(each.tensor) for each in self.all(buffers=False)}
        return self._after

    def _digest(self, tensor: torch.Tensor) -> str:
        return digest(tensor) if self._exact else change_mark(tensor)

    def note_gradients(self, recorder: Recorder, before: dict[str, tuple[str, int, int]]) -> None:
        """Record which gradients changed since `before`."""
        for name, now in self.gradients().items():
            then = before.get(name)
            if then is not None and then != now:
                fields: dict[str, Value] = {"type": "Parameter", "attribute": "grad"}
                recorder.note(CHANGE, name, {**fields, "from": then[0], "to": now[0]})

    def note_step(self, recorder: Recorder, before: dict[str, str]) -> None:
        """Record what an optimizer step changed."""
        self._after = {}
        for each in self.all(buffers=False):
            now = self._after[each.name] = self._digest(each.tensor)
            if before.get(each.name, now) != now:
                fields: dict[str, Value] = {
                    "type": "Parameter",
                    "attribute": "data",
                    "in_model": each.in_model,
                }
                recorder.note(CHANGE, each.name, fields, now)

    def note_states(self, recorder: Recorder) -> None:
        """Record the state of every variable after a step; :meth:`note_step` came before."""
        variables = list(self.all())
        # A tied parameter has several names.
        before = [self._digests.get(each.tensor) for each in variables]  # type: ignore[no-untyped-call]
        for each, last in zip(variables, before, strict=True):
            now = self._after.get(each.name) or self._digest(each.tensor)
            self._digests[each.tensor] = now
            fields: dict[str, Value] = {
                "type": each.kind,
                "attribute": "data",
                "dtype": dtype_name(each.tensor.dtype),
                "shape": list(each.tensor.shape),
                "requires_grad": each.tensor.requires_grad,
                "in_model": each.in_model,
                "in_optimizer": each.in_optimizer,
                "grad": self._gradient(each.tensor)[0],
            }
            if last is not None:
                fields["changed"] = last != now
            for name, value in vars(each.tensor).items():
                if not name.startswith("_") and isinstance(value, bool | int | str):
                    fields[f"attr.{name}"] = value
            recorder.note(STATE, each.name, fields, now)
        self._gradients.clear()

    def saved_names(self) -> set[str]:
        """The keys that a complete checkpoint of the largest model holds."""
        models = self.models()
        if not models:
            return set()
        largest = max(models, key=lambda model: sum(1 for _ in model.parameters()))
        # A state_dict is made by hooks that may have the error; the names come from the model.
        names = {name for name, _ in largest.named_parameters(remove_duplicate=False)}
        for prefix, module in largest.named_modules():
            names |= {
                f"{prefix}.{name}" if prefix else name
                for name in module._buffers
                if module._buffers[name] is not None
                and name not in module._non_persistent_buffers_set
            }
        return {name.removeprefix("module.") for name in names}


def _gradient(tensor: torch.Tensor) -> tuple[str, int, int]:
    gradient = tensor.grad if tensor.is_leaf else None
    if gradient is None:
        return "none", 0, 0
    values = gradient.detach()
    if values.layout != torch.strided:
        values = values.coalesce().values()
    state = "nonzero" if bool(values.any()) else "zero"
    return state, id(gradient), gradient._version
