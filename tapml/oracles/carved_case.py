"""The interface of a carved test that oracles and replays use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray


class CarvedTensor(Protocol):
    """One tensor of a test."""

    @property
    def lifetime(self) -> str:
        """``weight``, ``state``, ``input`` or ``activation``."""

    @property
    def key(self) -> str:
        """Identifies the content."""


class CarvedCase(Protocol):
    """A test, such as :class:`tapml.suite.carved_test.CarvedTest`."""

    @property
    def id(self) -> str:
        """Identifies the test within its suite."""

    @property
    def operator(self) -> str:
        """Name of the operator."""

    @property
    def symbols(self) -> Mapping[str, int]:
        """Integers passed along with the tensors."""

    @property
    def key(self) -> str:
        """Identifies operator, inputs and outputs by content."""

    @property
    def inputs(self) -> Sequence[CarvedTensor]:
        """The tensors read, in parameter order."""

    def read_inputs(self) -> list[NDArray[Any]]:
        """Raw inputs, in parameter order."""

    def read_outputs(self) -> list[NDArray[Any]]:
        """The reference's raw outputs, in parameter order."""


def weight_keys(test: CarvedCase) -> list[str | None]:
    """Content key of each tensor read that is a weight; None for the others."""
    return [tensor.key if tensor.lifetime == "weight" else None for tensor in test.inputs]
