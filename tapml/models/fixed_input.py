"""An input of a file that is a constant of the module made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
from msgspec import Meta

from tapml.models.inputs import Array
from tapml_targets.errors import InputError

_Extent: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]


@dataclass(frozen=True)
class FixedInput:
    """Its name, and the whole numbers that it has."""

    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    shape: Annotated[tuple[_Extent, ...], Meta(max_length=8)]
    numbers: Annotated[tuple[int, ...], Meta(max_length=64)]

    @classmethod
    def of(cls, name: str, array: Array) -> Self:
        """From an array."""
        return cls(name, array.shape, tuple(map(int, array.reshape(-1))))

    def check(self, given: Any, model: str) -> None:
        """Raise :class:`InputError` if an array has other numbers."""
        array = np.asarray(given)
        if array.shape == self.shape and array.reshape(-1).tolist() == list(self.numbers):
            return
        shown = str(array.reshape(-1)[:4].tolist())[1:-1]
        raise InputError(
            f"input {self.name} of {model} is {shown[:100]} {list(array.shape)}: expected "
            f"{str(list(self.numbers))[1:-1]} {list(self.shape)}, which the model was moved for; "
            "leave it out, or move the model with another first --input"
        )


def without_fixed(
    arrays: Mapping[str, Array], fixed: Sequence[FixedInput], model: str
) -> dict[str, Array]:
    """Arrays without those of fixed inputs, which are checked."""
    own = {each.name: each for each in fixed}
    for name in arrays.keys() & own.keys():
        own[name].check(arrays[name], model)
    return {name: each for name, each in arrays.items() if name not in own}
