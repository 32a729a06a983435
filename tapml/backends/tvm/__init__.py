"""TVM's own importers, with kernels made by LLVM for the processor."""

from tapml.backends.description import Description
from tapml.backends.parts import NEEDS, PROGRAM_FOLDER

DESCRIPTION = Description(
    title="TVM with LLVM",
    formats=(".onnx", PROGRAM_FOLDER),
    packages={
        "tvm": "apache-tvm==0.27.0.post1",
        "torch": "torch>=2.13,<2.14",
        "onnx": "onnx>=1.17",
    },
    without=("tensorflow",),
    needs=NEEDS,
)
