"""Versions of tensors: what tells cheaply that no value of a model has changed."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, is_
from typing import Final

import torch

PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
"""Types whose tensors have values of their own, which a version belongs to."""


class Marks:
    """Where parameters lie and which versions they have: what tells cheaply of a change."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._found = _found(tensors)
        self._storages = {each.untyped_storage().data_ptr() for each in tensors}

    @classmethod
    def of(cls, tensors: list[torch.Tensor]) -> Marks | None:
        """None if one of the tensors has no values of its own that a version belongs to."""
        plain = all(type(each) in PLAIN and not each.is_inference() for each in tensors)
        return cls(tensors) if plain else None

    def again(self, tensors: list[torch.Tensor]) -> bool:
        """Take the versions of now, if these are the tensors and they lie where they lay."""
        if not self._are(tensors):
            return False
        before, self._found = self._found, _found(tensors)
        return before[1] == self._found[1]

    def hold(
        self, tensors: list[torch.Tensor], versions_tell: Callable[[set[int]], bool] | None
    ) -> bool:
        """Whether these are the tensors, and none of them has changed."""
        return (
            versions_tell is not None
            and versions_tell(self._storages)
            and self._are(tensors)
            and self._found == _found(tensors)
        )

    def _are(self, tensors: list[torch.Tensor]) -> bool:
        return len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))


_VERSION: Final = attrgetter("_version")


def _found(tensors: list[torch.Tensor]) -> tuple[list[int], list[int]]:
    """The version of each, and where it lies."""
    return list(map(_VERSION, tensors)), list(map(torch.Tensor.data_ptr, tensors))
