"""What a backend does with a model: the interface of every folder's ``runner.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Input:
    """An input of a model; None is an extent that may be any."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True)
class Node:
    """One call of a layer or operator.

    Attributes
    ----------
    name
        The same on every backend that runs the model.
    kind
        The layer type or operator: ``Conv2D``.
    sources
        (name, output) of every tensor that it reads, in order; weights do not count. The name is
        that of a node or an input.
    """

    name: str
    kind: str
    sources: tuple[tuple[str, int], ...] = ()


class Runner(Protocol):
    """A model, loaded."""

    def versions(self) -> dict[str, str]:
        """The version of every library that takes part."""

    def inputs(self) -> Sequence[Input]:
        """The inputs of the model, in order."""

    def nodes(self) -> Sequence[Node]:
        """The graph, in an order in which it can be run; without its inputs."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in order, as a user gets them: compiled, if the library does."""

    def hidden(self, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        """What every node returned, by name. A node that the library fused away is left out."""

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        """What one node returns for these values of its `sources`.

        Raises
        ------
        UnsupportedOperatorError
            If this node cannot run alone.
        """


def to_plain(array: Any) -> Array:
    """An array that can be sent to another process: low-precision floats become float32."""
    plain = np.asarray(array)
    if plain.dtype.kind == "V" or plain.dtype.name.startswith(("bfloat", "float8", "float4")):
        return plain.astype(np.float32)
    if plain.dtype.kind not in "biufc":
        raise TypeError(f"expected numbers, got an array of {plain.dtype}")
    return plain
