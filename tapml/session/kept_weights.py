"""A plan's weights, memory-mapped from files.

Most weights are used as the checkpoint stores them; they are mapped from the model's folder.
Weights that were converted or computed on import are in one file of the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tapml.models.resolve import home_of
from tapml.models.tensor_file import TensorFile, open_tensors, write_tensors
from tapml.plan.graph_plan import TensorSpecification
from tapml_targets.errors import InputError

Array = npt.NDArray[Any]

OWN: Final = ""
"""Stands for the session's own file, in place of a file of the model's folder."""
_PIECE_BYTES: Final = 16 << 20
_GLANCE: Final = 4096

Sources = Mapping[str, tuple[str, str]]
"""By weight: the file (:data:`OWN`, or its name in the model's folder) and the tensor in it."""


class KeptWeights(Mapping[str, Array]):
    """The weights of a plan by name, memory-mapped.

    Arrays hold raw bits (bfloat16 as uint16). They are writable, but writing changes no file.

    Parameters
    ----------
    specifications
        The plan's weights.
    sources
        The file and tensor of each weight.
    own
        The session's safetensors file.
    model_folder
        The folder of the other files.

    Raises
    ------
    InputError
        If a file cannot be read, is damaged, or lacks a tensor of the right shape and dtype.
    """

    def __init__(
        self,
        specifications: Mapping[str, TensorSpecification],
        sources: Sources,
        own: Path,
        model_folder: Path,
    ) -> None:
        mapped = cache(lambda file: _open(own if file == OWN else home_of(model_folder) / file))
        self._places: dict[str, tuple[TensorFile, str]] = {}
        for name, wanted in specifications.items():
            if name not in sources:
                raise InputError(f"the weight {name} has no source file")
            file, tensor = sources[name]
            stored = mapped(file).tensors.get(tensor)
            if stored is None or (stored.shape, stored.dtype) != (wanted.shape, wanted.dtype):
                raise InputError(
                    f"{mapped(file).path} has no {tensor!r} with {wanted.dtype} {wanted.shape}"
                )
            self._places[name] = mapped(file), tensor

    def __getitem__(self, name: str) -> Array:
        mapped, tensor = self._places[name]
        return mapped[tensor]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def keep_weights(
    weights: Mapping[str, Array],
    specifications: Mapping[str, TensorSpecification],
    own: Path,
    model_folder: Path,
) -> dict[str, tuple[str, str]]:
    """Find weights in the model's files, write the others to `own`, and return all sources.

    Raises SetupError if `own` cannot be written.
    """
    files = [
        mapped
        for path in sorted(home_of(model_folder).glob("*.safetensors"))
        if (mapped := _try(path))
    ]
    sources: dict[str, tuple[str, str]] = {}
    others: dict[str, Array] = {}
    for name, wanted in specifications.items():
        found = _find(weights[name], wanted, files)
        if found is None:
            others[name] = weights[name]
        sources[name] = (OWN, name) if found is None else found
    write_tensors(own, others, {name: specifications[name].dtype for name in others})
    return sources


def _open(path: Path) -> TensorFile:
    # The reference copies read-only arrays, but not writable ones; it writes to neither.
    return open_tensors(path, writable=True)


def _try(path: Path) -> TensorFile | None:
    """A file of the model's folder; None if it cannot be mapped."""
    try:
        return _open(path)
    except InputError:
        return None


def _find(
    array: Array, wanted: TensorSpecification, files: list[TensorFile]
) -> tuple[str, str] | None:
    """The file and tensor with the same bytes as a weight, preferring the same name."""
    alike = [
        (name != wanted.name, name, mapped)
        for mapped in files
        for name, stored in mapped.tensors.items()
        if (stored.shape, stored.dtype) == (wanted.shape, wanted.dtype)
    ]
    for _, name, mapped in sorted(alike, key=lambda each: each[:2]):
        if _same_bytes(array, mapped[name]):
            return mapped.path.name, name
    return None


def _same_bytes(one: Array, other: Array) -> bool:
    first, second = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (one, other))
    # Layers have many tensors of the same shape; nearly all differ in their first bytes.
    if first.size != second.size or not np.array_equal(first[:_GLANCE], second[:_GLANCE]):
        return False
    return all(
        np.array_equal(first[at : at + _PIECE_BYTES], second[at : at + _PIECE_BYTES])
        for at in range(0, first.size, _PIECE_BYTES)
    )
