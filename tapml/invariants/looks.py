"""Looks at parts of a training loop that one call alone does not show.

Each is a few microseconds, reads what PyTorch keeps anyway, and says something in a field of the
call that it belongs to.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.batchnorm import _NormBase

from tapml.invariants.summaries import tensors_in
from tapml.invariants.versions import PLAIN

_NODES: Final = 512


def graph_of(roots: Any, wanted: Collection[str] | None = None) -> list[str]:
    """The kinds of nodes in the graph of a loss, nearest first, and ``...`` if it has more.

    Parameters
    ----------
    roots
        The tensors that a backward call begins with.
    wanted
        Kinds to look for; the walk ends when all are found. None for all.
    """
    tensors = list(roots) if isinstance(roots, Sequence) else [roots]
    # A root may also be an edge of the graph, which has its node.
    found = [getattr(each, "grad_fn", None) or getattr(each, "node", None) for each in tensors]
    waiting = deque(each for each in found if each is not None)
    seen, kinds = set(waiting), dict[str, None]()
    missing = None if wanted is None else set(wanted)
    if missing and len(waiting) == 1 and missing == {waiting[0].name()}:
        return list(missing)
    while waiting and (missing is None or missing):
        if len(seen) > _NODES:
            return [*kinds, "..."]
        node = waiting.popleft()
        kind = node.name()
        if missing is None or kind in missing:
            kinds[kind] = None
        if missing is not None:
            missing.discard(kind)
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return list(kinds)


def untracked_norms(model: torch.nn.Module) -> int:
    """How many norms have trained weights, and statistics that saw no batch."""
    found = 0
    for part in model.modules():
        if not isinstance(part, _NormBase) or part.num_batches_tracked is None:
            continue
        weight = part.weight
        # To compare a distributed one, ranks would have to meet.
        plain = type(weight) in (torch.Tensor, torch.nn.Parameter) and not weight.is_meta
        if plain and not int(part.num_batches_tracked):
            found += bool((weight.detach() != 1).any())
    return found


class GradientsLeft:
    """Tells whether optimizers use the gradients that are cleared, and clear those that they used.

    One is known from its first step on.
    """

    def __init__(self) -> None:
        self._marks: WeakKeyDictionary[torch.optim.Optimizer, _Mark | None] = WeakKeyDictionary()
        # A parameter and the gradient that the last step used, until that is cleared.
        self._used: WeakKeyDictionary[torch.optim.Optimizer, _Used | None] = WeakKeyDictionary()

    def owner(
        self, part: torch.nn.Module | torch.optim.Optimizer, parameters: Iterable[torch.Tensor]
    ) -> torch.optim.Optimizer | None:
        """The optimizer that a part is, or that has the first of its parameters from a module."""
        if isinstance(part, torch.optim.Optimizer):
            return part if part in self._marks else None
        held = set(map(id, parameters))
        first = ((each, next(iter(parameters_of(each)), None)) for each in self._marks)
        return next((each for each, one in first if id(one) in held), None)

    def stepped(self, owner: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> None:
        """The optimizer has used the gradients that there are."""
        self._marks[owner] = _mark(parameters)
        first = next((each for each in parameters if each.is_leaf and each.grad is not None), None)
        if first is not None and first.grad is not None:
            self._used[owner] = weakref.ref(first), weakref.ref(first.grad)

    def cleared(
        self, owner: torch.optim.Optimizer | None, parameters: Iterable[torch.Tensor]
    ) -> None:
        """Gradients of parameters are cleared, most of them the optimizer's."""
        if owner is not None:
            self._marks[owner] = _mark(parameters_of(owner))
        held = set(map(id, parameters))
        for optimizer, used in self._used.items():
            first = None if used is None else used[0]()
            if first is not None and id(first) in held:
                self._used[optimizer] = None

    def unused(self, owner: torch.optim.Optimizer) -> bool:
        """Whether there are gradients that the optimizer did not use."""
        now = _mark(parameters_of(owner))
        return now is not None and now != self._marks[owner]

    def carried(self, owner: torch.optim.Optimizer) -> bool | None:
        """Whether gradients that the last step used were not cleared; None before a first step."""
        if owner not in self._used:
            return None
        used = self._used[owner]
        parameter, gradient = (None, None) if used is None else (used[0](), used[1]())
        return parameter is not None and gradient is not None and parameter.grad is gradient


def is_rounded(tensor: torch.Tensor, optimizers: Iterable[torch.optim.Optimizer]) -> bool:
    """Whether a parameter may keep its value because a step is less than it can tell.

    Its gradient is what rounding leaves of zero, as that of a bias before a BatchNorm, or the
    learning rate is, as at the end of a schedule.
    """
    gradient = tensor.grad if tensor.is_leaf else None
    if gradient is None or type(gradient) not in PLAIN or not gradient.is_floating_point():
        return False
    if gradient.layout != torch.strided or not gradient.numel():
        return False
    largest = float(gradient.detach().abs().max())
    weight, least = float(tensor.detach().abs().max()), torch.finfo(tensor.dtype).eps
    if 0 < largest <= least * max(weight, 1.0):
        return True
    return any(
        0 < _longest_step(optimizer, group, tensor, largest) <= least * weight
        for optimizer in optimizers
        for group in optimizer.param_groups
        if any(each is tensor for each in group["params"])
    )


def _longest_step(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], tensor: torch.Tensor, slope: float
) -> float:
    """How far a step moves an element, about: adaptive ones by their rate, whatever the slope."""
    rate = float(group.get("lr", 1.0))
    if not isinstance(optimizer, torch.optim.SGD):
        return rate
    momentum = optimizer.state.get(tensor, {}).get("momentum_buffer")
    return rate * (slope if momentum is None else max(slope, float(momentum.abs().max())))


_Mark = tuple[int, int, int]
_Used = tuple["weakref.ref[torch.Tensor]", "weakref.ref[torch.Tensor]"]


def _mark(parameters: Iterable[torch.Tensor]) -> _Mark | None:
    for each in parameters:
        gradient = each.grad if each.is_leaf else None
        if gradient is not None:
            return id(each), id(gradient), gradient._version
    return None


def read_once(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """An argument by place 0 or name, and arguments that have a list where it was an iterator."""
    value = args[0] if args else kwargs.get(name)
    if isinstance(value, Iterator):
        value = list(value)
        args, kwargs = ((value, *args[1:]), kwargs) if args else (args, {**kwargs, name: value})
    return value, args, kwargs


def acts_on_gradients(clipped: Any, known: Callable[[], Iterable[Any]]) -> bool:
    """Whether parameters that are clipped have gradients, or are right to have none.

    Frozen ones are, and those of a part of a model that this step has not called.

    Parameters
    ----------
    clipped
        What the script gives to be clipped.
    known
        The variables of models that ran, each with its ``tensor``.
    """
    given = tensors_in(clipped)
    if any(each.grad is not None for each in given):
        return True
    if given and not any(each.requires_grad for each in given):
        return True
    tensors, places = [each.tensor for each in known()], set(map(id, given))
    others = any(each.grad is not None for each in tensors)
    return others and any(id(each) in places for each in tensors)


def activation_before(value: Any) -> str:
    """The activation function whose result a tensor is, or a view of it; empty if none is."""
    node = getattr(value, "grad_fn", None)
    for _ in range(_VIEWS):
        if node is None:
            return ""
        name: str = node.name()
        if name in _ACTIVATIONS:
            return name.removesuffix("Backward0").lower()
        if not _KEEP.fullmatch(name):
            return ""
        node = node.next_functions[0][0]
    return ""


_VIEWS: Final = 6
_KEEP: Final = re.compile(
    r"((Unsafe)?View|ReshapeAlias|T|Transpose|Permute|Unsqueeze|Squeeze|Slice|Select|Clone|ToCopy"
    r"|Alias|Expand)Backward\d+"
)
# A logarithm of softmax before a cross entropy changes nothing.
_ACTIVATIONS: Final = frozenset(
    f"{name}Backward0"
    for name in ("Softmax", "Sigmoid", "Tanh", "Relu", "Gelu", "Silu", "Elu", "LeakyRelu")
)


def weights_in(value: Any, depth: int = 0) -> dict[str, torch.Tensor]:
    """The largest dictionary of tensors in what a script saves."""
    if not isinstance(value, Mapping) or depth > 3:
        return {}
    here = {
        str(key).removeprefix("module."): each
        for key, each in value.items()
        if isinstance(each, torch.Tensor)
    }
    below = [weights_in(each, depth + 1) for each in value.values()]
    return max([here, *below], key=len)


def parameters_of(owner: torch.nn.Module | torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters that a module has, or an optimizer holds."""
    if isinstance(owner, torch.nn.Module):
        return list(owner.parameters())
    return [each for group in owner.param_groups for each in group["params"]]
