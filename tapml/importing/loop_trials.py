"""Loops over the places that a mask picks, tried: the others must do nothing.

A graph has such a loop written out over all places (:mod:`tapml.importing.masked_rows`). That is
right where a place that the mask leaves out changes no number, as an expert that no token has. So
the module runs both ways, on inputs of which some leave places out in every loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tapml.importing.masked_rows import MaskedRows
from tapml.importing.picked_rows import Loops
from tapml_targets.errors import UnsupportedOperatorError

# Of the largest number of an output, in the precision of its dtype.
_EPSILONS: Final = 1024
# Rows of the example inputs that stand for all others in turn.
_ROWS: Final = 3


class _WithinTensors(TorchFunctionMode):
    """As in the graph, the last row stands for one beyond a tensor's end.

    The module's own run has none, so it is a place of a loop that its mask never picks.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__getitem__ and _is_place(args[1]):
            args = args[0], args[1].clamp(max=len(args[0]) - 1)
        return func(*args, **(kwargs or {}))


def check_loops(module: nn.Module, inputs: Sequence[Tensor], loops: Loops) -> None:
    """Check that the places that masks leave out in `loops` of the module do nothing.

    Raises
    ------
    UnsupportedOperatorError
        If one changes an output, or no inputs that were tried leave one out: it names the line.
    """
    if not loops.left_out:
        return
    tried = Loops(looks=True)
    for given in _varied(inputs):
        try:
            with torch.no_grad():
                own = _numbers(module, given)
        except Exception:  # noqa: S112 - such inputs may be none of its own
            continue
        with torch.no_grad(), _WithinTensors(), MaskedRows(tried).of(module):
            written_out = _numbers(module, given)
        if len(own) != len(written_out) or not all(map(_alike, own, written_out)):
            raise UnsupportedOperatorError(
                f"{', '.join(loops.left_out)}: a loop over the places that a mask picks does "
                "something for the others too, and only a run knows which they are: compute all, "
                "and take torch.where(mask, changed, unchanged)"
            )
        if all(tried.left_out.get(line) for line in loops.left_out):
            return
    lines = [line for line in loops.left_out if not tried.left_out.get(line)]
    raise UnsupportedOperatorError(
        f"{', '.join(lines)}: a loop over the places that a mask picks, and none of the inputs "
        "tried leaves a place out: whether it does nothing then is not known; compute all places, "
        "and take torch.where(mask, changed, unchanged)"
    )


def _varied(inputs: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """The inputs, and others that have one number, token or row of theirs everywhere."""
    yield tuple(inputs)
    for row in range(_ROWS):
        yield tuple(
            _of_one(each, row) if not each.is_floating_point() and each.numel() > 1 else each
            for each in inputs
        )
    for row in range(_ROWS):
        yield tuple(_of_one(each, row) if each.numel() > 1 else each for each in inputs)


def _is_place(index: Any) -> bool:
    whole = isinstance(index, Tensor) and not index.is_floating_point()
    return whole and not index.ndim and index.dtype is not torch.bool


def _of_one(tensor: Tensor, row: int) -> Tensor:
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor[row % len(tensor)].expand_as(tensor).clone()
    return torch.full_like(tensor, int(tensor.flatten()[row % tensor.numel()]))


def _numbers(module: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    # A module may write into its inputs.
    found = module(*(each.clone() for each in inputs))
    return [each for each in pytree.tree_leaves(found) if isinstance(each, Tensor)]


def _alike(own: Tensor, other: Tensor) -> bool:
    if own.shape != other.shape or own.dtype is not other.dtype:
        return False
    if not own.is_floating_point():
        return torch.equal(own, other)
    finite = own[own.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    allowed = _EPSILONS * torch.finfo(own.dtype).eps * scale
    return torch.allclose(own, other, rtol=0.0, atol=allowed, equal_nan=True)
