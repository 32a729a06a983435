"""PyTorch, operation by operation."""

from tapml.backends.description import Description
from tapml.backends.parts import PROGRAM_FOLDER

DESCRIPTION = Description(
    title="PyTorch, eager",
    formats=(PROGRAM_FOLDER,),
    packages={"torch": "torch>=2.13,<2.14"},
    without=("tensorflow",),
    variants={
        "default": "the attention that PyTorch chooses",
        "math": "attention from its products and softmax",
        "flash": "attention in one kernel, block by block",
    },
)
