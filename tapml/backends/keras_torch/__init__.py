"""Keras on PyTorch."""

from tapml.backends.description import Description

DESCRIPTION = Description(
    title="Keras on PyTorch",
    formats=(".keras",),
    packages={"keras": "keras>=3.15,<4", "torch": "torch>=2.13,<2.14"},
    variables={"KERAS_BACKEND": "torch"},
    without=("tensorflow",),
)
