"""The variables of a run: parameters and buffers of its models, and what its optimizers hold.

A change is found by the digest of all bytes, because ``tensor.data`` and foreign kernels change
a parameter without its version counter.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter, ne
from typing import Any, Final

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tapml.invariants.gradients import Gradient, gradient_of, mark_of, marks_of
from tapml.invariants.looks import is_rounded
from tapml.invariants.needs import Needs
from tapml.invariants.record import CHANGE, IDLE, MODEL, ROUNDED, Fields, Value
from tapml.invariants.recorder import Recorder
from tapml.invariants.structure import Structure
from tapml.invariants.summaries import bits_of, digest, dtype_name
from tapml.invariants.versions import PLAIN, Marks
from tapml.invariants.wrapped import is_compiled, refuse_compiled
from tapml_targets.errors import InputError

_ALL_BITS: Final = (1 << 64) - 1


@dataclass(frozen=True)
class Variable:
    """A parameter or buffer under the name it has in its model.

    Attributes
    ----------
    kind
        ``Parameter`` or ``Buffer``.
    in_model, in_optimizer
        Whether a model that ran holds it, and whether an optimizer does.
    model
        The place of that model among those that ran; -1 without one.
    idle
        Whether that model ran without gradients alone, as a teacher does.
    """

    name: str
    kind: str
    tensor: torch.Tensor
    in_model: bool
    in_optimizer: bool
    model: int = -1
    idle: bool = False


class Variables:
    """Finds the variables of the models that ran and of all optimizers.

    Both are held weakly: a model that the script replaced is not one of its models any more.

    Parameters
    ----------
    needs
        What a watched run has to see. None digests every byte before and after each step, and
        records each change. Else an order-insensitive hash tells changes, unless ranks are
        compared, what changed between two steps counts as changed by the second where nobody asks
        for it, a kind of change is noted once for each call, and the modules are walked once a
        step.
    """

    def __init__(self, needs: Needs | None = None) -> None:
        self._needs = needs
        self._walked: list[Variable] | None = None
        self._parameters: list[Variable] = []
        self._names: list[str] = []
        self._tensors: list[torch.Tensor] = []
        self._leaves = False
        self._structure: Structure | None = None
        self._last: dict[int, str] = {}
        self._views: dict[int, tuple[int, torch.Tensor]] = {}
        self._shared: dict[tuple[Any, ...], dict[str, Value]] = {}
        self._gradients: dict[int, Gradient] = {}
        self._after: dict[str, str] = {}
        self._unnamed: dict[int, str] = {}
        self._stepped: list[Variable] = []
        self._marks: Marks | None = None
        self.versions_tell: Callable[[set[int]], bool] | None = None
        self._left: dict[int, str] = {}
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._stated: list[Variable] = []
        # States of parameters that all change, and what else they depend on.
        self._moving: list[Fields] = []
        self._traits: list[tuple[Any, ...]] = []
        self._parts: set[int] = set()
        self._graded: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._loose: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._numbers = WeakIdKeyDictionary()
        self._numbered = 0

    def add_model(self, model: torch.nn.Module) -> None:
        """A model ran as a whole; parts of known models are not models of their own.

        Raises SetupError if it was compiled before the recording began.
        """
        known = self.models()
        if any(part is model for each in known for part in each.modules()):
            return
        if any(map(is_compiled, model.modules())):
            refuse_compiled(model)
        parts = {id(part) for part in model.modules()}
        self._models = [weakref.ref(each) for each in known if id(each) not in parts]
        self._models.append(weakref.ref(model))
        self._walked = None

    def ran_with_gradients(self, module: torch.nn.Module) -> None:
        """It may be trained, and so may the models that it is a part of."""
        if module not in self._graded:
            whole = [each for each in self.models() if any(p is module for p in each.modules())]
            self._graded.update([module, *whole])
            self._walked = None

    def add_part(self, part: torch.nn.Module) -> None:
        """A module ran inside another one.

        If it trains parameters and no model has it, as when a script keeps layers in a plain list,
        it is a model of its own.
        """
        if id(part) in self._parts:
            return
        trains = any(each.requires_grad for each in part._parameters.values() if each is not None)
        if trains and not torch.is_grad_enabled():
            return
        if trains:
            known = self.models()
            self.add_model(part)
            self.ran_with_gradients(part)
            if part not in known and part in self.models():
                self._loose.add(part)
        self._parts.add(id(part))

    def check_seen(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise SetupError if a compiled model, whose calls are not seen, has its parameters."""
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        seen = (id(each) for model in self.models() for each in model.parameters())
        if held.isdisjoint(seen):
            for each in gc.get_objects():
                compiled = issubclass(type(each), torch.nn.Module) and is_compiled(each)
                if compiled and not held.isdisjoint(map(id, each.parameters())):
                    refuse_compiled(each)

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """The script made an optimizer."""
        if not any(each() is optimizer for each in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
            self._walked = None

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

    def whole_models(self) -> list[torch.nn.Module]:
        """Those that a script puts into training and evaluation mode: no layer in a plain list."""
        return [each for each in self.models() if each not in self._loose]

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
        classes: Counter[str] = Counter()
        for place, model in enumerate(self.models()):
            kind = type(model).__name__
            idle = model not in self._graded
            prefix = ""
            if place:
                classes[kind] += 1
                prefix = f"{kind}." if classes[kind] == 1 else f"{kind}-{classes[kind]}."
            for name, parameter in model.named_parameters(remove_duplicate=False):
                seen.add(id(parameter))
                shown = prefix + name.removeprefix("module.")
                mine = id(parameter) in held
                yield Variable(shown, "Parameter", parameter, True, mine, place, idle)
            if buffers:
                for name, buffer in model.named_buffers():
                    shown = prefix + name.removeprefix("module.")
                    yield Variable(shown, "Buffer", buffer, True, False, place)
        for key, parameter in parameters.items():
            if key not in seen:
                yield Variable(f"optimizer.{held[key]}", "Parameter", parameter, False, True)

    def parameters(self) -> list[Variable]:
        """The parameters; in a watched run those of the last step, until it ends."""
        self._variables()
        return self._parameters

    def _variables(self) -> list[Variable]:
        if self._needs is None or self._walked is None:
            self._walked = list(self.all())
            self._parameters = [each for each in self._walked if each.kind == "Parameter"]
            self._names = [each.name for each in self._parameters]
            self._tensors = [each.tensor for each in self._parameters]
            self._leaves = all(each.is_leaf for each in self._tensors)
            if self._needs is not None:
                self._structure = Structure(self.models(), self.optimizers())
        return self._walked

    def number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor in this process: the same as long as it lives."""
        found: int | None = self._numbers.get(tensor)  # type: ignore[no-untyped-call]
        if found is None:
            found = self._numbers[tensor] = self._numbered
            self._numbered += 1
        return found

    def gradients(self, call: str) -> dict[str, Gradient]:
        """Before a call that may change them, per parameter.

        Its gradient is ``none``, ``zero`` or ``nonzero``; identity, version. A watched run does
        without the first.
        """
        self._gradients.clear()
        if self._needs is None:
            return {each.name: self._gradient(each.tensor) for each in self.parameters()}
        if not self._sought(call, "grad"):
            return {}
        self._variables()
        marks = marks_of(self._tensors) if self._leaves else map(mark_of, self._tensors)
        return dict(zip(self._names, marks, strict=True))

    def _gradient(self, tensor: torch.Tensor) -> Gradient:
        # Looked at once between two calls that change gradients.
        found = self._gradients.get(id(tensor))
        if found is None:
            found = self._gradients[id(tensor)] = gradient_of(tensor)
        return found

    def gradient_state(self, tensors: Iterable[torch.Tensor] | None = None) -> str:
        """``nonzero`` if any gradient is, else ``zero`` if there is one, else ``none``.

        Of some parameters, or of all.
        """
        if tensors is None:
            tensors = (each.tensor for each in self.parameters())
        found = "none"
        for each in tensors:
            state = self._gradient(each)[0]
            if state == "nonzero":
                return state
            found = "zero" if state == "zero" else found
        return found

    def values(self) -> dict[str, str]:
        """The digest of each parameter."""
        if self._needs is not None and self._after and not self._needs.between:
            return self._after
        self._variables()
        # What goes round the version counter, such as ``tensor.data``, digests alone see.
        if self._marks is None or not self._marks.hold(self._tensors, self.versions_tell):
            found = {each.name: self._digest(each.tensor) for each in self.parameters()}
            # A closure inside the first step may be the first to run the model, which names them.
            self._unnamed = {
                id(each.tensor): found[each.name] for each in self.parameters() if not each.in_model
            }
            # Its views may be of other places than those that the marks know.
            self._marks = None
            return found
        return self._after

    def left(self) -> dict[str, str]:
        """The digest of each parameter after the last step: an object of its own for each step."""
        return self._after

    def digests(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """Digests of tensors by name, of the kind that parameters have here."""
        if self._needs is None or self._needs.ranks:
            return {name: digest(each) for name, each in tensors.items()}
        views = {name: bits_of(each) for name, each in tensors.items()}
        return {
            name: digest(tensors[name]) if view is None else _sum_of(view)
            for name, view in views.items()
        }

    def has(self, weights: Mapping[str, torch.Tensor]) -> bool:
        """Whether these weights, by name, are those that a model that ran has now."""
        for model in self.models():
            mine = {name.removeprefix("module."): each for name, each in model.named_parameters()}
            shared = mine.keys() & weights.keys()
            now = self.digests({name: mine[name] for name in shared})
            if shared and now == self.digests({name: weights[name] for name in shared}):
                return True
        return False

    def let_go(self) -> None:
        """Something may have changed parameters without their versions."""
        self._marks = None

    def moved(self, now: dict[str, str]) -> str | None:
        """A parameter in an optimizer whose digest is not what the last step left.

        Empty if there is none, None before the second step. A parameter of another model may have
        the name of one that is gone.
        """
        if not self._after:
            return None
        if now is self._after:
            return ""
        after = self._after
        for each in self.parameters():
            differs = each.in_optimizer and after.get(each.name, now[each.name]) != now[each.name]
            if differs and any(
                one.name == each.name and one.tensor is each.tensor for one in self._stepped
            ):
                return each.name
        return ""

    def are_as_left(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether some of these were trained by the last step, and all are as it left them."""
        stepped = {id(each.tensor): each.name for each in self._stepped if each.in_optimizer}
        known = [(stepped[id(each)], each) for each in tensors if id(each) in stepped]
        now = ((self._after.get(name), self._digest(each)) for name, each in known)
        return bool(known) and all(left == found for left, found in now)

    def _digest(self, tensor: torch.Tensor) -> str:
        if self._needs is None or self._needs.ranks:
            return digest(tensor)
        place = tensor.data_ptr() if type(tensor) in PLAIN else 0
        address, view = self._views.get(id(tensor), (0, None))
        if view is None or address != place or view.nbytes != tensor.nbytes:
            view = bits_of(tensor)
            if view is None or not place:
                self._views.pop(id(tensor), None)
                return digest(tensor)
            self._views[id(tensor)] = place, view
        return _sum_of(view)

    def _sought(self, call: str, attribute: str) -> set[str]:
        """Which changes of an attribute of parameters the invariants look for inside a call."""
        begin = f"Parameter.{attribute} "
        contents = self._needs.contents.get(call, ()) if self._needs is not None else ()
        return {each.removeprefix(begin) for each in contents if each.startswith(begin)}

    def note_gradients(self, recorder: Recorder, before: dict[str, Gradient], call: str) -> None:
        """Record which gradients changed since `before`, inside the call."""
        if self._needs is not None:
            self._touch_gradients(recorder, before, self._sought(call, "grad"))
            return
        for name, now in self.gradients(call).items():
            then = before.get(name)
            if then is not None and then != now:
                fields: dict[str, Value] = {"type": "Parameter", "attribute": "grad"}
                recorder.note(CHANGE, name, {**fields, "from": then[0], "to": now[0]})

    def _touch_gradients(
        self, recorder: Recorder, before: dict[str, Gradient], sought: set[str]
    ) -> None:
        self._gradients.clear()
        for each in self.parameters() if sought else ():
            now = mark_of(each.tensor)
            if before.get(each.name, now) == now:
                continue
            came = f"becomes {self._gradient(each.tensor)[0]}"
            # A rule about others asks whether there are zeros.
            if came in sought or came == "becomes zero":
                recorder.touch(f"Parameter.grad {came}")
                sought.discard("becomes none" if came == "becomes zero" else came)
                sought.discard(came)
                if not sought:
                    return

    def note_step(self, recorder: Recorder, before: dict[str, str]) -> dict[str, Value]:
        """Record what an optimizer step changed; returns the fields of the step."""
        self._variables()
        asked = self._needs is not None and self._needs.between and self.versions_tell is not None
        lie = asked and self._marks is not None and self._marks.again(self._tensors)
        if asked and not lie:
            self._marks = Marks.of(self._tensors)
        views = [view for each in self._tensors if (view := self._views.get(id(each)))]
        # Views of parameters that lie where they lay need no second look.
        if lie and len(views) == len(self._tensors):
            digests = [_sum_of(bits) for _, bits in views]
        else:
            digests = list(map(self._digest, self._tensors))
        after = self._after = dict(zip(self._names, digests, strict=True))
        self._stepped = self._parameters
        if self._unnamed:
            known = {id(each.tensor): each.name for each in self.parameters()}
            moved = {known[key]: was for key, was in self._unnamed.items() if key in known}
            before = {**before, **moved}
            self._unnamed = {}
        if not any(before.get(name, now) != now for name, now in after.items()):
            held = [each.tensor for each in self.parameters() if each.in_optimizer]
            graded = [each for each in held if each.is_leaf and each.grad is not None]
            vain = graded and all(is_rounded(each, self.optimizers()) for each in graded)
            return {ROUNDED: True} if vain else {}
        if self._needs is not None:
            recorder.touch("Parameter.data changes")
            return {}
        for each in self.parameters():
            now = after[each.name]
            if before.get(each.name, now) != now:
                fields: dict[str, Value] = {
                    "type": "Parameter",
                    "attribute": "data",
                    "in_model": each.in_model,
                }
                recorder.note(CHANGE, each.name, fields, now)
        return {}

    def note_states(self, recorder: Recorder) -> None:
        """Record the state of every variable after a step; :meth:`note_step` came before."""
        structure = self._structure
        if structure is None or not structure.holds(self.models(), self.optimizers()):
            self._walked = None
        variables = self._variables()
        if self._stated is variables and self._all_move():
            digests = list(self._after.values())
            self._last = dict(zip(map(id, self._tensors), digests, strict=True))
            recorder.note_states(self._names, self._moving, digests)
            self._gradients.clear()
            return
        # A tied parameter has several names.
        before, self._last = self._last, {}
        left, self._left = self._left, {}
        states: list[Fields] = []
        digests = []
        for each in variables:
            last, now = before.get(id(each.tensor)), self._after.get(each.name)
            now = self._last[id(each.tensor)] = now or self._digest(each.tensor)
            changed = None if last is None else last != now
            unused = not each.in_optimizer and self._unused(each, changed, left)
            states.append(self._state(each, changed, unused))
            digests.append(now)
        recorder.note_states([each.name for each in variables], states, digests)
        self._stated = variables
        self._gradients.clear()
        alike = self._needs is not None and not self._needs.gradients
        alike = alike and len(self._after) == len(variables)
        alike = alike and not any(map(vars, self._tensors))
        moved = all(each.get("changed") and each["in_optimizer"] for each in states)
        self._moving = states if alike and moved else []
        self._traits = list(map(_TRAITS, self._tensors))
        if len(self._views) > 2 * len(variables):
            self._views.clear()

    def _all_move(self) -> bool:
        """Whether each variable is a trained parameter whose state has changed once more."""
        return (
            bool(self._moving)
            and not any(map(vars, self._tensors))
            and self._traits == list(map(_TRAITS, self._tensors))
            and all(map(ne, self._after.values(), map(self._last.get, map(id, self._tensors))))
        )

    def _unused(self, variable: Variable, changed: bool | None, left: dict[int, str]) -> bool:
        """Whether a parameter got a gradient since the last step that nothing used.

        Of one that no optimizer holds, and that kept its value. A gradient that an earlier step
        left is none.
        """
        tensor = variable.tensor
        if not (variable.in_model and tensor.requires_grad):
            return False
        if tensor.grad is None or self._gradient(tensor)[0] != "nonzero":
            return False
        bits = bits_of(tensor.grad)
        now = digest(tensor.grad) if bits is None else _sum_of(bits)
        self._left[id(tensor)] = now
        return changed is False and left.get(id(tensor)) != now

    def _state(self, variable: Variable, changed: bool | None, unused: bool) -> dict[str, Value]:
        """The fields of a variable's state; a watched run has one object for equal ones."""
        tensor = variable.tensor
        attributes = vars(tensor)
        asked = self._needs is None or self._needs.gradients
        key = (
            variable.kind,
            tensor.dtype,
            tensor.shape,
            tensor.requires_grad,
            variable.in_model,
            variable.in_optimizer,
            variable.model,
            variable.idle,
            self._gradient(tensor)[0] if asked else "",
            changed,
            unused,
            changed is False and is_rounded(tensor, self.optimizers()),
        )
        if not attributes and (found := self._shared.get(key)) is not None:
            return found
        kind, dtype, shape, trained, in_model, in_optimizer, model, idle, gradient, *_ = key
        fields: dict[str, Value] = {
            "type": kind,
            "attribute": "data",
            "dtype": dtype_name(dtype),
            "shape": list(shape),
            "requires_grad": trained,
            "in_model": in_model,
            "in_optimizer": in_optimizer,
            MODEL: model,
        }
        if idle:
            fields[IDLE] = True
        if asked:
            fields["grad"] = gradient
        if changed is not None:
            fields["changed"] = changed
        if unused:
            fields["grad_unused"] = True
        if key[-1]:
            fields[ROUNDED] = True
        for name, value in attributes.items():
            if not name.startswith("_") and isinstance(value, bool | int | str):
                fields[f"attr.{name}"] = value
        if not attributes:
            self._shared[key] = fields
        return fields

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


def _sum_of(bits: torch.Tensor) -> str:
    return f"{int(bits.sum().item()) & _ALL_BITS:016x}"


_TRAITS: Final = attrgetter("requires_grad", "dtype", "shape")
