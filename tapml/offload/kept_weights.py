"""A plan's weights without its model: mapped from the model's own files where they lie there.

Most weights of a checkpoint are used as they are stored. Those are mapped from the model's folder;
what was converted, computed or met on import goes into one file in the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tapml.graph.plan import TensorSpecification
from tapml.models.tensor_file import StoredArray, TensorFile, open_tensors, write_tensors
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError

Array = npt.NDArray[Any]

OWN: Final = ""
"""In place of a file of the model's folder: the session's own tensors."""
_PIECE_BYTES: Final = 16 << 20
_GLANCE: Final = 4096

Sources = Mapping[str, tuple[str, str]]
"""By weight: the file (:data:`OWN`, or its name in the model's folder) and the tensor in it."""


class KeptWeights(Mapping[str, Array]):
    """The weights of a plan by name, mapped: nothing is read before it is used.

    Arrays hold raw bits (bfloat16 as uint16). They may be written to; no file changes by it.

    Parameters
    ----------
    specifications
        The plan's weights.
    sources
        Where each lies.
    own
        The session's file of tensors.
    model_folder
        Where the other files are.

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
        mapped = cache(lambda file: _Mapped(own if file == OWN else model_folder / file))
        self._places: dict[str, tuple[_Mapped, StoredArray]] = {}
        for name, wanted in specifications.items():
            if name not in sources:
                raise InputError(f"it is not said where the weight {name} lies")
            file, tensor = sources[name]
            stored = mapped(file).file.tensors.get(tensor)
            if stored is None or (stored.shape, stored.dtype) != (wanted.shape, wanted.dtype):
                raise InputError(
                    f"{mapped(file).file.path} does not hold {tensor!r} as {wanted.dtype} "
                    f"{wanted.shape}"
                )
            self._places[name] = mapped(file), stored

    def __getitem__(self, name: str) -> Array:
        mapped, stored = self._places[name]
        return mapped.array(stored)

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
    """Find the weights in a model's files, write the others to `own`, and say where each lies.

    Raises
    ------
    SetupError
        If `own` cannot be written.
    """
    files = [
        mapped for path in sorted(model_folder.glob("*.safetensors")) if (mapped := _try(path))
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


class _Mapped:
    """A file of tensors, mapped so that what is written to an array stays in this process.

    The reference takes arrays that may be written to without a detour, though it writes none of
    these.
    """

    def __init__(self, path: Path) -> None:
        self.file: TensorFile = open_tensors(path)
        nbytes = self.file.nbytes
        try:
            first = path.stat().st_size - nbytes
            self._data: Array = (
                np.asarray(np.memmap(path, np.uint8, "c", first, (nbytes,)))
                if nbytes
                else np.empty(0, np.uint8)
            )
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path}: {error}") from error

    def array(self, stored: StoredArray) -> Array:
        """The bits of one tensor."""
        kind = np.dtype(dtype(stored.dtype).numpy_name).newbyteorder("<")
        return self._data[stored.start : stored.end].view(kind).reshape(stored.shape)


def _try(path: Path) -> _Mapped | None:
    """A file of a model's folder; None where it holds what no plan takes as it is."""
    try:
        return _Mapped(path)
    except InputError:
        return None


def _find(
    array: Array, wanted: TensorSpecification, files: list[_Mapped]
) -> tuple[str, str] | None:
    """The file and the tensor with the very bytes of a weight; the one of its name comes first."""
    alike = [
        (name != wanted.name, name, mapped)
        for mapped in files
        for name, stored in mapped.file.tensors.items()
        if (stored.shape, stored.dtype) == (wanted.shape, wanted.dtype)
    ]
    for _, name, mapped in sorted(alike, key=lambda each: each[:2]):
        if _same_bytes(array, mapped.array(mapped.file.tensors[name])):
            return mapped.file.path.name, name
    return None


def _same_bytes(one: Array, other: Array) -> bool:
    first, second = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (one, other))
    # Layers hold many tensors of one shape: the first bytes tell nearly all of them apart.
    if first.size != second.size or not np.array_equal(first[:_GLANCE], second[:_GLANCE]):
        return False
    return all(
        np.array_equal(first[at : at + _PIECE_BYTES], second[at : at + _PIECE_BYTES])
        for at in range(0, first.size, _PIECE_BYTES)
    )
