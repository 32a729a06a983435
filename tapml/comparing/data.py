"""The inputs and labels of a comparison, from a file or a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.backends import steps
from tapml.backends.runner import Array, Input
from tapml.comparing import data_tables
from tapml.comparing.data_archives import read_archive
from tapml.comparing.data_folders import CLASSES, fitted, read_array, read_folder
from tapml.comparing.texts import ENDING, check_tokens, read_texts, to_tokens, with_masks
from tapml_targets.errors import InputError

LABELS: Final = "y"
SINGLE_INPUT: Final = "x"


@dataclass(frozen=True)
class Data:
    """Instances along the first axis of every array; a single number is the same for all.

    Attributes
    ----------
    arrays
        The inputs by name.
    labels
        Whole numbers (classes), floats (a regression's targets), or None.
    images
        Whether ``x`` holds images, channels last, which a model may want first.
    texts
        What a language model reads; `arrays` are empty until its tokens are known, see
        :meth:`in_tokens`.
    """

    arrays: Mapping[str, Array]
    labels: Array | None = None
    images: bool = False
    texts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts) or steps.instances(self.arrays)

    def in_tokens(self, model: Path) -> Data:
        """Texts in the tokens of a model's folder; tokens with a mask; other data as it is.

        Raises InputError for tokens or masks that do not fit.
        """
        check_tokens(self.arrays, model)
        if self.texts:
            return replace(self, arrays=to_tokens(self.texts, model))
        return replace(self, arrays=with_masks(self.arrays, model))

    def for_inputs(self, inputs: Sequence[Input]) -> dict[str, Array]:
        """The arrays by the names of a model's inputs; large ones as the file has them.

        Raises
        ------
        InputError
            If one is missing, or has another shape or kind of numbers than the model expects.
        """
        arrays = dict(self.arrays)
        if len(inputs) == 1 and inputs[0].name not in arrays and SINGLE_INPUT in arrays:
            single_input = arrays[SINGLE_INPUT]
            if self.images:
                single_input = fitted(single_input, inputs[0].shape)
            arrays = {inputs[0].name: single_input}
        names = [each.name for each in inputs]
        if missing := [name for name in names if name not in arrays]:
            single = f" (or {SINGLE_INPUT!r})" if len(names) == 1 else ""
            raise InputError(
                f"the data has no array for the input {missing[0]!r}; expected {names}{single}, "
                f"found {sorted(arrays)}"
            )
        return {each.name: _fitting(each, arrays[each.name]) for each in inputs}


def _fitting(expected: Input, array: Array) -> Array:
    fits = array.ndim == len(expected.shape) and all(
        extent is None or extent == found
        for extent, found in zip(expected.shape[1:], array.shape[1:], strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if each is None else str(each) for each in expected.shape)
        raise InputError(
            f"the input {expected.name!r} expects the shape ({wanted}), found {array.shape}"
            f"{_layout_hint(expected.shape, array)}"
        )
    dtype = steps.dtype_of(expected)
    if dtype.kind != array.dtype.kind and not (dtype.kind == "f" and array.dtype.kind in "iu"):
        raise InputError(
            f"the input {expected.name!r} expects {expected.dtype}, found {array.dtype}; "
            "convert the array"
        )
    if array.size * dtype.itemsize > steps.WINDOW_BYTES:
        return array  # Converted a window at a time, see `steps.typed`.
    return np.asarray(array, dtype=dtype, order="C")


def _layout_hint(shape: Sequence[int | None], array: Array) -> str:
    """What makes an array fit that has its channels elsewhere, or holds one instance alone."""

    def fits(some: Sequence[int]) -> bool:
        return len(some) == len(shape) and all(
            extent is None or extent == found
            for extent, found in zip(shape[1:], some[1:], strict=True)
        )

    if fits((1, *array.shape)):
        return "; of one instance, give x[None]"
    if array.ndim > 2:
        if fits(np.moveaxis(array, -1, 1).shape):
            return "; its channels lie last: give np.moveaxis(x, -1, 1)"
        if fits(np.moveaxis(array, 1, -1).shape):
            return "; its channels lie first: give np.moveaxis(x, 1, -1)"
    return ""


def read_data(path: Path) -> Data:
    """Read an ``.npz`` file: arrays named as the model's inputs, or ``x``; labels in ``y``.

    A ``.npy`` file is ``x``; of a table see :func:`~tapml.comparing.data_tables.read_table`.

    Of texts, see :func:`~tapml.comparing.texts.read_texts`; of another folder,
    :func:`~tapml.comparing.data_folders.read_folder`.

    Raises
    ------
    InputError
        If the file is no such archive, is too large, or its arrays do not fit together.
    """
    if path.suffix == ENDING or (
        path.is_dir() and any(each.name != CLASSES for each in path.glob(f"*{ENDING}"))
    ):
        return Data({}, texts=tuple(read_texts(path)))
    if path.suffix.lower() in data_tables.ENDINGS:
        return make_data(data_tables.read_table(path))
    if path.suffix == ".npy" and path.is_file():
        return make_data({SINGLE_INPUT: read_array(path)})
    if path.is_dir():
        arrays, images = read_folder(path)
        return replace(make_data(arrays), images=images)
    return make_data(read_archive(path))


def make_data(arrays: Mapping[str, Any]) -> Data:
    """Data from arrays by name; raises InputError as :func:`read_data` does."""
    found = {name: np.asarray(each) for name, each in arrays.items()}
    for name, each in found.items():
        if each.dtype.kind not in "biuf":
            classes = " (of names: np.unique(y, return_inverse=True)[1])" if name == LABELS else ""
            raise InputError(f"the array {name!r} is of {each.dtype}; expected numbers{classes}")
        if each.size == 0 or (each.ndim == 0 and name == LABELS):
            raise InputError(f"the array {name!r} of shape {each.shape} holds no instance")
    labels = found.pop(LABELS, None)
    if labels is not None and not np.isfinite(labels).all():
        raise InputError(f"the labels {LABELS} hold NaN or Inf; expected classes or targets")
    if not found:
        raise InputError(
            f"the data has no inputs; expected arrays named as them, or {SINGLE_INPUT}"
        )
    counts = {name: len(each) for name, each in found.items() if each.ndim}
    if labels is not None:
        counts[LABELS] = len(labels)
    if len(set(counts.values())) > 1:
        raise InputError(
            f"the arrays differ in their number of instances: {counts}; instances lie along the "
            "first axis"
        )
    return Data(found, labels)
