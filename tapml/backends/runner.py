"""What a backend does with a model: the interface of every folder's ``runner.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tapml_targets.errors import UnsupportedOperatorError

Array: TypeAlias = NDArray[Any]

# What a language model reads. The masks are 1 at tokens and 0 at what pads them.
TOKENS: Final = "token_ids"
MASK: Final = "attention_mask"
FEATURES: Final = "features"
"""The source of an encoder-decoder of speech, instead of tokens."""
WRITTEN: Final = "decoder_token_ids"
"""The text that the decoder of an encoder-decoder reads."""
WRITTEN_MASK: Final = "decoder_attention_mask"


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


@runtime_checkable
class SavesLayers(Protocol):
    """What a :class:`Runner` may do besides."""

    def save_layer(
        self, node: str, inputs: Sequence[Array], folder: Path
    ) -> tuple[str, dict[str, Array]]:
        """Write a model of one node into a folder.

        Returns
        -------
        tuple
            The name of its file or folder there, and the inputs by the model's names.

        Raises
        ------
        UnsupportedOperatorError
            If this node makes no model of its own.
        """


@runtime_checkable
class RebuildsLayers(Protocol):
    """What a :class:`Runner` of an interface over a library may do besides."""

    def rebuild(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        """What the library's own calls, without the interface, make of these values of a node.

        Raises
        ------
        UnsupportedOperatorError
            If this kind of node is not rebuilt.
        """


@runtime_checkable
class RunsPrefixes(Protocol):
    """What a :class:`Runner` that compiles a graph may do besides."""

    def prefix(self, node: str, inputs: Mapping[str, Array]) -> list[Array]:
        """What one node returns where the model is compiled as far as that, and no further.

        Raises
        ------
        UnsupportedOperatorError
            If the model cannot end at this node.
        """


def is_tensor(value: object) -> bool:
    """Whether a library's value is an array of numbers: no text, no sequence, no map."""
    kind = getattr(getattr(value, "dtype", None), "kind", "O")
    return kind in "biufc" or (kind == "V" and isinstance(value, np.ndarray))


def to_plain(array: Any) -> Array:
    """An array that can be sent to another process: low-precision floats become float32.

    Raises
    ------
    UnsupportedOperatorError
        If it holds no numbers.
    """
    plain = np.asarray(array)
    if plain.dtype.kind == "V" or plain.dtype.name.startswith(("bfloat", "float8", "float4")):
        return plain.astype(np.float32)
    if plain.dtype.kind not in "biufc":
        raise UnsupportedOperatorError(f"expected numbers, got an array of {plain.dtype}")
    return plain
