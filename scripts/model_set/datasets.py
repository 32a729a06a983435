"""Data that is made here or comes with scikit-learn; nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import zoom
from sklearn import datasets as sklearn_datasets

Array = NDArray[Any]
DIGIT_CLASSES: Final = 10
_ROAD_HEIGHT: Final = 66
_ROAD_WIDTH: Final = 200


@dataclass(frozen=True)
class Dataset:
    """Instances along the first axis; whole numbers are classes, floats a regression's targets."""

    inputs: Array
    targets: Array

    def split(self, held_out: int) -> tuple[Dataset, Dataset]:
        """(for training, the last `held_out` instances)."""
        return (
            Dataset(self.inputs[:-held_out], self.targets[:-held_out]),
            Dataset(self.inputs[-held_out:], self.targets[-held_out:]),
        )


def digits(size: int = 28, channels: int = 1) -> Dataset:
    """Handwritten digits, enlarged, shape (1797, size, size, channels), from 0 to 1."""
    found: Any = sklearn_datasets.load_digits()
    images = zoom(found.images / 16, (1, size / 8, size / 8), order=1).astype(np.float32)
    return Dataset(np.repeat(images[..., None], channels, axis=3), found.target)


def digit_rows() -> Dataset:
    """Handwritten digits as sequences of 8 rows, shape (1797, 8, 8)."""
    found: Any = sklearn_datasets.load_digits()
    return Dataset((found.images / 16).astype(np.float32), found.target)


def digit_restoration() -> Dataset:
    """Digits with noise, and as targets those without; shape (1797, 16, 16, 1)."""
    clean = digits(16).inputs
    noise = np.random.default_rng(0).normal(0, 0.2, clean.shape)
    return Dataset((clean + noise).astype(np.float32), clean)


def photographs(size: int = 32, count: int = 600) -> Dataset:
    """Patches of the two photographs of scikit-learn; the class says which."""
    random = np.random.default_rng(0)
    images = [each / np.float32(255) for each in sklearn_datasets.load_sample_images().images]
    classes = random.integers(0, len(images), count)
    patches = []
    for each in classes:
        top, left = (int(random.integers(0, extent - size)) for extent in images[each].shape[:2])
        patches.append(images[each][top : top + size, left : left + size])
    return Dataset(np.stack(patches).astype(np.float32), classes)


def road(count: int = 400) -> Dataset:
    """Drawn roads, shape (count, 66, 200, 3), and the steering angle of each in radians."""
    random = np.random.default_rng(0)
    rows = np.linspace(0, 1, _ROAD_HEIGHT)[:, None]
    columns = np.linspace(-1, 1, _ROAD_WIDTH)[None, :]
    images, angles = [], []
    for _ in range(count):
        angle = random.uniform(-1, 1)
        shift = random.uniform(-0.2, 0.2)
        middle = angle * (1 - rows) ** 2 + shift * rows
        distance = np.abs(columns - middle)
        width = 0.15 + 0.5 * rows
        grey = np.where(distance < width, 0.35, 0.6)
        grey = np.where(np.abs(distance - width) < 0.03, 0.95, grey)
        tint = np.stack([grey, np.where(distance < width, grey, 0.7), grey], axis=-1)
        images.append(tint + random.normal(0, 0.03, tint.shape))
        angles.append([angle])
    return Dataset(np.asarray(images, np.float32), np.asarray(angles, np.float32))


def table(name: str) -> Dataset:
    """A table of scikit-learn, every column normalized, shuffled."""
    found: Any = getattr(sklearn_datasets, f"load_{name}")()
    values = (found.data - found.data.mean(axis=0)) / found.data.std(axis=0)
    order = np.random.default_rng(0).permutation(len(values))
    targets = found.target
    if targets.dtype.kind == "f":
        targets = (targets / np.abs(targets).max()).reshape(len(targets), -1).astype(np.float32)
    return Dataset(values[order].astype(np.float32), targets[order])


DATASETS: Final[dict[str, Callable[[], Dataset]]] = {
    "digits": digits,
    "digit rows": digit_rows,
    "digit restoration": digit_restoration,
    "photographs": photographs,
    "road": road,
    "iris": lambda: table("iris"),
    "wine": lambda: table("wine"),
    "breast cancer": lambda: table("breast_cancer"),
    "diabetes": lambda: table("diabetes"),
    "linnerud": lambda: table("linnerud"),
}
