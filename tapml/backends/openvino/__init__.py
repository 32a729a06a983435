"""OpenVINO on the CPU."""

from tapml.backends.description import Description
from tapml.backends.parts import PROGRAM_FOLDER

DESCRIPTION = Description(
    title="OpenVINO",
    formats=(".onnx", PROGRAM_FOLDER),
    packages={"openvino": "openvino>=2026", "onnx": "onnx>=1.17"},
)
