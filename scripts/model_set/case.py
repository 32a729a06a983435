"""A model of the set, whatever it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

KERAS_BACKENDS: Final = (
    "keras-torch",
    "keras-jax",
    "keras-tensorflow",
    "keras-numpy",
    "keras-openvino",
)
ONNX_BACKENDS: Final = (
    "onnxruntime",
    "onnxruntime:disabled",
    "openvino",
    "onnx-reference",
    "tvm",
)


@dataclass(frozen=True)
class Case:
    """A model with its data.

    Attributes
    ----------
    name
        Of its files.
    group
        The row of the table: what it was trained on.
    suffix
        ``.keras`` or ``.onnx``.
    """

    name: str
    group: str
    suffix: str

    @property
    def backends(self) -> tuple[str, ...]:
        """All that read it."""
        return KERAS_BACKENDS if self.suffix == ".keras" else ONNX_BACKENDS

    def model(self, folder: Path) -> Path:
        """The model's file."""
        return folder / f"{self.name}{self.suffix}"

    def data(self, folder: Path) -> Path:
        """The data's file."""
        return folder / f"{self.name}.npz"
