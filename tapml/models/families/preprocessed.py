"""Shapes of an image or a sound that a class of ``transformers`` reads, from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tapml_targets.errors import InputError

_PREPROCESSOR: Final = "preprocessor_config.json"
# Of waves that a folder says nothing of: what nearly all models of speech were trained with.
_SAMPLING_RATE: Final = 16_000
# Of a model that takes any number: two seconds, or one with steps of 10 ms.
_FRAMES: Final = 100


def image(config: Any) -> tuple[int, ...]:
    """Channels, height and width, from the configuration or the folder's preprocessor.

    Raises
    ------
    InputError
        If neither says the size.
    """
    own = getattr(config, "vision_config", config)
    size = getattr(own, "image_size", None) or _prepared_size(config)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(getattr(own, "num_channels", 3)), int(height), int(width)


def sound(config: Any) -> tuple[int, ...]:
    """Frames and bins of a spectrogram of fixed length, or the samples of a second."""
    frames, bins = (getattr(config, each, None) for each in ("max_length", "num_mel_bins"))
    if frames and bins:
        return int(frames), int(bins)
    return (int(_prepared(config).get("sampling_rate") or _SAMPLING_RATE),)


def features(config: Any) -> tuple[int, ...]:
    """Bins and frames as of Whisper, or frames and bins of any other class.

    Raises
    ------
    InputError
        If the configuration has no number of bins.
    """
    own = getattr(config, "encoder_config", config)
    width: Any = getattr(own, "feature_projection_input_dim", None)
    bins: Any = getattr(own, "num_mel_bins", None)
    if bins and (positions := getattr(own, "max_source_positions", None)):
        return int(bins), 2 * int(positions)
    if not (width or bins):
        raise InputError(
            f"{config.name_or_path}/config.json says nothing of the bins of its features: expected "
            "num_mel_bins or feature_projection_input_dim"
        )
    return _FRAMES, int(width or bins)


def _prepared_size(config: Any) -> Any:
    read = _prepared(config)
    try:
        size = read.get("crop_size") or read["size"]
        if isinstance(size, dict):
            edge = size.get("shortest_edge")
            size = (size.get("height", edge), size.get("width", edge))
        return tuple(int(each) for each in size) if isinstance(size, list | tuple) else int(size)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{config.name_or_path} says nothing of the size of its images: expected image_size in "
            f"config.json, or size in {_PREPROCESSOR}"
        ) from error


def _prepared(config: Any) -> dict[str, Any]:
    """What the preprocessor's file says; empty if there is none."""
    try:
        read = json.loads((Path(config.name_or_path) / _PREPROCESSOR).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}
