"""The reference implementation of ONNX, written in NumPy from the operators' definitions."""

from tapml.backends.description import Description

DESCRIPTION = Description(
    title="ONNX's reference implementation",
    formats=(".onnx",),
    packages={"onnx": "onnx>=1.17"},
    preload=("onnx.reference",),
)
