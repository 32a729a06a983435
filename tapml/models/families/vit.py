"""ViT: classes of images."""

from __future__ import annotations

from typing import Any

from tapml.models.families.family import Family


def _image(config: Any) -> tuple[int, ...]:
    size = config.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(config.num_channels), int(height), int(width)


FAMILY = Family(
    architectures=("ViTForImageClassification",),
    workload="module",
    vocabulary="",
    embedding="",
    positions="",
    kv_heads="",
    image=_image,
)
