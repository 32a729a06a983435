"""Keras on OpenVINO."""

from tapml.backends.description import Description

DESCRIPTION = Description(
    title="Keras on OpenVINO",
    formats=(".keras",),
    packages={"keras": "keras>=3.15,<4", "openvino": "openvino>=2026"},
    variables={"KERAS_BACKEND": "openvino"},
    without=("tensorflow",),
)
