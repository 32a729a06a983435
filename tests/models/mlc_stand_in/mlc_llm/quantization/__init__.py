"""Names of how weights are stored: floats."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NoQuantization:
    """Floats of one dtype."""

    model_dtype: str


QUANTIZATION = {"q0f32": NoQuantization("float32"), "q0f16": NoQuantization("float16")}
