"""A small convolutional network for images of digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor, nn

from tapml_targets.errors import InputError

_LARGEST: Final = 1 << 12


class DigitsCnn(nn.Module):
    """Two convolutions, each with ReLU and pooling, and a linear layer.

    Parameters
    ----------
    config
        ``side`` of an image, a multiple of 4; ``channels``, two numbers; ``classes``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        side, classes = _size(config, "side"), _size(config, "classes")
        channels = config.get("channels")
        if not isinstance(channels, list) or len(channels) != 2 or side % 4:
            raise InputError(
                f"config.json has channels = {str(channels)[:60]} and side = {side}: expected two "
                "numbers and a multiple of 4"
            )
        first, second = (_size({"channels": each}, "channels") for each in channels)
        self.first = nn.Conv2d(1, first, 3, padding=1)
        self.second = nn.Conv2d(first, second, 3, padding=1)
        self.classes = nn.Linear(second * (side // 4) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[batch, 1, side, side]`` to logits ``[batch, classes]``."""
        x = nn.functional.max_pool2d(self.first(x).relu(), 2)
        x = nn.functional.max_pool2d(self.second(x).relu(), 2)
        logits: Tensor = self.classes(x.flatten(1))
        return logits


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LARGEST:
        raise InputError(
            f"config.json has {key} = {str(value)[:60]}: expected an integer from 1 to {_LARGEST}"
        )
    return value
