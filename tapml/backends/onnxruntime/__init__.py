"""ONNX Runtime on the CPU."""

from tapml.backends.description import Description
from tapml.backends.parts import PROGRAM_FOLDER

DESCRIPTION = Description(
    title="ONNX Runtime",
    formats=(".onnx", PROGRAM_FOLDER),
    packages={"onnxruntime": "onnxruntime>=1.20", "onnx": "onnx>=1.17"},
    preload=("onnx", "onnxruntime"),
    variants={
        "all": "every optimization of the graph, as by default",
        "extended": "the optimizations of level 2",
        "basic": "constants folded, redundant nodes removed",
        "disabled": "the graph as it is",
    },
)
