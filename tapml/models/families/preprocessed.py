"""Shapes of an image or a sound that a class of ``transformers`` reads, from its folder."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, Final

from tapml_targets.errors import InputError

_PREPROCESSOR: Final = "preprocessor_config.json"
# Of waves that a folder says nothing of: what nearly all models of speech were trained with.
_SAMPLING_RATE: Final = 16_000
# Of a model that takes any number: two seconds, or one with steps of 10 ms.
_FRAMES: Final = 100
# A second at any rate of recording; an input of a gigabyte has 2**28 numbers.
_LARGEST: Final = 1 << 18
_MAX_ELEMENTS: Final = 1 << 28


def image(config: Any) -> tuple[int, ...]:
    """Channels, height and width, from the configuration or the folder's preprocessor.

    Raises
    ------
    InputError
        If neither says the size, or it is no size of an image.
    """
    # An encoder beside a decoder of another class has its own.
    parts = (getattr(config, each, None) for each in ("vision_config", "encoder"))
    own = next(
        (each for each in parts if hasattr(each, "image_size")),
        getattr(config, "vision_config", config),
    )
    size = getattr(own, "image_size", None) or _prepared_size(config)
    edges = size if isinstance(size, list | tuple) and len(size) == 2 else (size, size)
    height, width = (("image_size", edge) for edge in edges)
    return _shape(config, ("num_channels", getattr(own, "num_channels", 3)), height, width)


def sound(config: Any) -> tuple[int, ...]:
    """Frames and bins of a spectrogram of fixed length, or the samples of a second.

    Raises
    ------
    InputError
        If a number of them is not one that a sound can have.
    """
    frames, bins = ((each, getattr(config, each, None)) for each in ("max_length", "num_mel_bins"))
    if frames[1] and bins[1]:
        return _shape(config, frames, bins)
    rate = _prepared(config).get("sampling_rate") or _SAMPLING_RATE
    return _shape(config, ("sampling_rate", rate))


def features(config: Any) -> tuple[int, ...]:
    """Bins and frames as of Whisper, or frames and bins of any other class.

    Raises
    ------
    InputError
        If the configuration has no number of bins, or one that no sound can have.
    """
    own = getattr(config, "encoder_config", config)
    width, bins, positions = (
        (each, getattr(own, each, None))
        for each in ("feature_projection_input_dim", "num_mel_bins", "max_source_positions")
    )
    if bins[1] and positions[1]:
        height, half = _shape(config, bins, positions)
        return height, 2 * half
    if not bins[1]:
        # As Speech2Text calls them.
        bins = ("input_feat_per_channel", getattr(own, "input_feat_per_channel", None))
    if not (width[1] or bins[1]):
        raise InputError(
            f"{config.name_or_path}/config.json says nothing of the bins of its features: expected "
            "num_mel_bins or feature_projection_input_dim"
        )
    return (_FRAMES, *_shape(config, width if width[1] else bins))


def _shape(config: Any, *extents: tuple[str, Any]) -> tuple[int, ...]:
    """Extents, by the names that the folder's files have for them."""
    for name, value in extents:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LARGEST:
            raise InputError(
                f"{config.name_or_path} has {name} = {str(value)[:60]!r}: expected an integer from "
                f"1 to {_LARGEST}"
            )
    shape: tuple[int, ...] = tuple(value for _, value in extents)
    if prod(shape) > _MAX_ELEMENTS:
        given = ", ".join(f"{name} = {value}" for name, value in extents)
        raise InputError(
            f"{config.name_or_path} has {given}: expected an input of at most {_MAX_ELEMENTS} "
            "numbers"
        )
    return shape


def _prepared_size(config: Any) -> Any:
    read = _prepared(config)
    size = read.get("crop_size") or read.get("size")
    if isinstance(size, dict):
        edge = size.get("shortest_edge")
        size = (size.get("height", edge), size.get("width", edge))
    if size is None or size == (None, None):
        raise InputError(
            f"{config.name_or_path} says nothing of the size of its images: expected image_size in "
            f"config.json, or size in {_PREPROCESSOR}"
        )
    return size


def _prepared(config: Any) -> dict[str, Any]:
    """What the preprocessor's file says; empty if there is none."""
    try:
        read = json.loads((Path(config.name_or_path) / _PREPROCESSOR).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}
