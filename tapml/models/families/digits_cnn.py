"""Our small convolutional network for digits (:mod:`tapml.models.digits_cnn`)."""

from typing import Any

from tapml.models.families.family import Family


def _class() -> Any:
    from tapml.models.digits_cnn import DigitsCnn

    return DigitsCnn


FAMILY = Family(
    architectures=("DigitsCnn",),
    workload="module",
    vocabulary="",
    width="",
    layers="",
    heads="",
    kv_heads="",
    positions="",
    embedding="",
    layer="",
    own_class=_class,
)
