"""The dtype that a model has by default, known before anything of it is loaded."""

from __future__ import annotations

from pathlib import Path

from tapml.models.checkpoint import inspect_checkpoint, read_json
from tapml.models.file_names import CONFIG, PROGRAM
from tapml.models.resolve import ONNX
from tapml.models.stored import StoredModule


def natural_dtype(model: Path) -> str:
    """``float32`` or ``float16``, of what :func:`tapml.models.resolve_model` gave.

    Raises
    ------
    InputError
        If it is no model.
    """
    if model.suffix == ONNX and model.is_file():
        return "float32"
    if (model / PROGRAM).is_file():
        return StoredModule.from_json(read_json(model / CONFIG).get("recorded")).dtype
    return inspect_checkpoint(model).natural_dtype
