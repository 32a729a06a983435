"""OpenVINO on the CPU."""

from tapml.backends.description import Description

DESCRIPTION = Description(
    title="OpenVINO",
    formats=(".onnx",),
    packages={"openvino": "openvino>=2026", "onnx": "onnx>=1.17"},
)
