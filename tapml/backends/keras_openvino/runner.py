"""Loads a Keras model on OpenVINO, in float32 as on the other backends."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final

from tapml.backends.keras_runner import KerasRunner, loader

_PRECISION: Final = {"INFERENCE_PRECISION_HINT": "f32"}
_load = loader("openvino", "openvino")


def load(model: Path, variant: str) -> KerasRunner:
    """As the other Keras backends."""
    _compile_in_float32()
    return _load(model, variant)


def _compile_in_float32() -> None:
    """Have OpenVINO compile in float32 unless a caller says otherwise.

    ``predict`` of Keras leaves the precision to OpenVINO, which takes bfloat16 on processors that
    compute in it.
    """
    import openvino

    compile_model = openvino.compile_model

    @wraps(compile_model)
    def in_float32(
        model: Any, device_name: str = "AUTO", config: Mapping[str, Any] | None = None
    ) -> Any:
        return compile_model(model, device_name, _PRECISION | dict(config or {}))

    openvino.compile_model = in_float32
