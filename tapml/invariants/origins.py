"""Where the target of a loss comes from: a tensor of a batch, or rows beside the model's input.

Most targets are views of what a data loader delivered, or of all labels, and where they lie tells
which. Of one that was picked by an index, the index does, and of one that was copied, its values.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch

from tapml.invariants.needs import Needs
from tapml.invariants.record import ELSEWHERE
from tapml.invariants.summaries import is_transformed, tensors_in
from tapml.invariants.versions import PLAIN

_PICKS: Final = 8


class _Place(NamedTuple):
    """Where a tensor begins in its storage, in elements, and how far apart its rows are."""

    storage: int
    begin: int
    row: int


class _Input(NamedTuple):
    """Where it lies, whether it is a part of its storage, and the index that picked it, if any."""

    place: _Place
    is_part: bool
    index: Any


class Origins:
    """Knows the last batch of each data loader, and what a model was given last.

    Parameters
    ----------
    needs
        As of :class:`~tapml.invariants.variables.Variables`.
    """

    def __init__(self, needs: Needs | None) -> None:
        self._off = needs is not None and not needs.origins
        # Until an iterator ends, or delivers again: as long as a loop over it has its batch.
        self._batches: WeakKeyDictionary[Any, list[torch.Tensor]] = WeakKeyDictionary()
        # Rows that were picked last, and their index.
        self._picks: deque[tuple[weakref.ref[torch.Tensor], Any]] = deque(maxlen=_PICKS)
        self._input: _Input | None = None

    def delivered(self, iterator: object, batch: Any) -> None:
        """An iterator over a data loader gives a batch."""
        if not self._off:
            self._batches[iterator] = list(filter(_place, tensors_in(batch)))

    def given(self, args: Sequence[Any]) -> None:
        """A model is called in training; its first tensor is what targets are compared with."""
        if not self._off:
            self._input = None
            for first in tensors_in(args)[:1]:
                if (place := _place(first)) is not None:
                    self._input = _Input(place, _is_part(first), self._index_of(place))

    def picked(self, part: torch.Tensor, index: Any) -> None:
        """Rows of a tensor were picked by an index, or rows that lie at several places stacked."""
        if isinstance(index, list | tuple):
            index = [_place(each) for each in index if isinstance(each, torch.Tensor)]
        self._picks.appendleft((weakref.ref(part), index))

    def of(self, target: torch.Tensor) -> str:
        """The origin of a target; empty if nothing is known about it.

        ``batch 1 0 0`` is the second tensor of a batch, as many rows and columns after its begin as
        the model's input is after its own. ``input 1 0`` lies a row after the input, where no data
        loader delivers.
        """
        here = None if self._off else _place(target)
        if here is None:
            return ""
        batches = list(self._batches.values())
        for batch in batches:
            found = self._in_batch(here, batch) or _copied(target, batch)
            if found:
                return f"batch {found}"
        return ELSEWHERE if batches else self._beside_input(target, here)

    def _in_batch(self, here: _Place, batch: Sequence[torch.Tensor]) -> str:
        places = [(number, place) for number, each in enumerate(batch) if (place := _place(each))]
        found = _holder(here, places)
        if found is None:
            return ""
        number, whole = found
        given = self._input.place if self._input else None
        its = None if given is None else _holder(given, places)
        if given is None or its is None:
            # The model gets what was made of the batch; of which rows is not known.
            return f"{number} 0 {_steps(whole, here)[1]}"
        if its == found:
            return f"{number} {_said(given, here)}"
        return f"{number} {_steps(whole, here)[0] - _steps(its[1], given)[0]} 0"

    def _beside_input(self, target: torch.Tensor, here: _Place) -> str:
        if self._input is None:
            return ""
        given, is_part, index = self._input
        if given.storage == here.storage:
            return f"input {_said(given, here)}"
        if index is not None:
            return _between(index, self._index_of(here))
        parts = is_part, _is_part(target)
        if all(parts):
            return f"input {_said(given, here)}"
        # Of two whole tensors, as where an epoch is one batch, nothing is known.
        return ELSEWHERE if any(parts) else ""

    def _index_of(self, place: _Place) -> Any:
        for reference, index in self._picks:
            part = reference()
            found = None if part is None else _place(part)
            if found is not None and found.storage == place.storage:
                return index
        return None


def _between(first: Any, then: Any) -> str:
    """How far what one index picked is after what another one did, as of :meth:`Origins.of`."""
    if isinstance(first, list) or isinstance(then, list):
        known = isinstance(first, list) and isinstance(then, list) and len(first) == len(then)
        pairs = list(zip(first, then, strict=True)) if known else []
        if not pairs or any(None in pair for pair in pairs):
            return ELSEWHERE
        found = {_said(*pair) for pair in pairs}
        return f"input {found.pop()}" if len(found) == 1 else ELSEWHERE
    same = then is not None and (
        first is then or torch.equal(torch.as_tensor(first), torch.as_tensor(then))
    )
    return "input 0 0" if same else ELSEWHERE


def _place(tensor: torch.Tensor) -> _Place | None:
    plain = type(tensor) in PLAIN and tensor.layout == torch.strided and not tensor.is_meta
    if not plain or not tensor.numel() or not tensor.ndim or is_transformed(tensor):
        return None
    begin = int(tensor.storage_offset())
    storage = tensor.data_ptr() - begin * tensor.itemsize
    return _Place(storage, begin, max(int(tensor.stride(0)), 1))


def _is_part(tensor: torch.Tensor) -> bool:
    return tensor.nbytes < tensor.untyped_storage().nbytes()


def _holder(one: _Place, places: Sequence[tuple[int, _Place]]) -> tuple[int, _Place] | None:
    """Which of several places is in the storage of one; the one that begins nearest to it."""
    near = [each for each in places if each[1].storage == one.storage]
    return min(near, key=lambda each: abs(each[1].begin - one.begin), default=None)


def _steps(first: _Place, then: _Place) -> tuple[int, int]:
    """How many rows and columns one place is after another; rows alone in another storage."""
    if first.storage != then.storage:
        return then.begin // then.row - first.begin // first.row, 0
    between = then.begin - first.begin
    rows, columns = divmod(abs(between), first.row)
    return (rows, columns) if between >= 0 else (-rows, -columns)


def _said(first: _Place, then: _Place) -> str:
    return "{} {}".format(*_steps(first, then))


def _copied(target: torch.Tensor, batch: Sequence[torch.Tensor]) -> str:
    """The tensor of a batch whose values a target has, or all of them but one column."""
    for number, each in enumerate(batch):
        parts = [(each, 0)]
        if each.ndim > 1:
            parts += [(each[:, :-1], 0), (each[:, 1:], 1)]
        for part, column in parts:
            if _are_equal(part, target):
                return f"{number} 0 {column}"
    return ""


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.numel() != other.numel():
        return False
    begin, wanted = (each.reshape(-1)[:_COMPARED] for each in (one, other))
    return bool((begin.to(wanted.device) == wanted).all())


# Of a target on a device, so many elements of a batch follow it there.
_COMPARED: Final = 4096
