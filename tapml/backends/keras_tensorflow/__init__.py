"""Keras on TensorFlow."""

from tapml.backends.description import Description

DESCRIPTION = Description(
    title="Keras on TensorFlow",
    formats=(".keras",),
    packages={"keras": "keras>=3.15,<4", "tensorflow": "tensorflow-cpu>=2.21"},
    variables={
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    },
)
