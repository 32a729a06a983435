"""Gradients of parameters: whether they are zero, and what tells cheaply that they changed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from typing import Final, TypeAlias

import torch

from tapml.invariants.versions import PLAIN

Gradient: TypeAlias = tuple[str, int, int]
"""``none``, ``zero``, ``nonzero``, or empty where nobody looked; identity; version."""
NO_GRADIENT: Final[Gradient] = ("none", 0, 0)

_FIRST: Final = 64
_GRADIENT: Final = attrgetter("grad")
_VERSION: Final = attrgetter("_version")


def gradient_of(tensor: torch.Tensor) -> Gradient:
    """The gradient of a parameter, looked at."""
    mark = mark_of(tensor)
    gradient = tensor.grad
    if mark == NO_GRADIENT or gradient is None:
        return mark
    # Most gradients show by one number that they are not zero.
    plain = type(gradient) in PLAIN and gradient.layout == torch.strided and gradient.numel()
    if plain and gradient.as_strided((), ()).item():
        return "nonzero", *mark[1:]
    values = gradient.detach()
    if values.layout != torch.strided:
        values = values.coalesce().values()
    first = values.view(-1)[:_FIRST] if values.is_contiguous() else values
    state = "nonzero" if bool(first.any()) or bool(values.any()) else "zero"
    return state, *mark[1:]


def mark_of(tensor: torch.Tensor) -> Gradient:
    """What tells cheaply whether a gradient is another one."""
    gradient = tensor.grad if tensor.is_leaf else None
    return NO_GRADIENT if gradient is None else ("", id(gradient), gradient._version)


def marks_of(leaves: Sequence[torch.Tensor]) -> list[Gradient]:
    """As :func:`mark_of`, of all parameters of a model, which have gradients at the same time."""
    there = [each for each in map(_GRADIENT, leaves) if each is not None]
    if there and len(there) < len(leaves):
        return list(map(mark_of, leaves))
    marks = zip(repeat(""), map(id, there), map(_VERSION, there), strict=False)
    return list(marks) if there else [NO_GRADIENT] * len(leaves)
