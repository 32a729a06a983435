"""PyTorch, operation by operation."""

from tapml.backends.description import Description
from tapml.backends.parts import NEEDS, PROGRAM_FOLDER

DESCRIPTION = Description(
    title="PyTorch, eager",
    formats=(PROGRAM_FOLDER,),
    packages={"torch": "torch>=2.13,<2.14"},
    without=("tensorflow",),
    needs=NEEDS,
    preload=("tapml.backends.torch_graph",),
    variants={
        "default": "the attention that PyTorch chooses",
        "math": "attention from its products and softmax",
        "flash": "attention in one kernel, block by block, where it takes the shape",
    },
)
