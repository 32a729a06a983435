"""PyTorch, compiled by torch.compile."""

import os
from tempfile import gettempdir
from typing import Final

from tapml.backends.description import Description
from tapml.backends.parts import NEEDS, PROGRAM_FOLDER

_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
DESCRIPTION = Description(
    title="PyTorch, torch.compile",
    formats=(PROGRAM_FOLDER,),
    packages={"torch": "torch>=2.13,<2.14"},
    without=("tensorflow",),
    needs=NEEDS,
    # What was compiled once is kept for later processes.
    variables={_CACHE: os.environ.get(_CACHE, f"{gettempdir()}/torchinductor-{os.getuid()}")},
    preload=("tapml.backends.torch_graph",),
    variants={
        "inductor": "fused loops in C++, which needs a compiler",
        "aot-eager": "the traced graph, decomposed, operation by operation",
        "inductor-math": "inductor, attention from its products and softmax",
        "inductor-flash": "inductor, attention in one kernel, block by block",
        "aot-eager-math": "aot-eager, attention from its products and softmax",
        "aot-eager-flash": "aot-eager, attention in one kernel, block by block",
    },
)
