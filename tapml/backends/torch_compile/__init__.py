"""PyTorch, compiled by torch.compile."""

import os
from typing import Final

from tapml.backends.description import Description
from tapml.backends.parts import NEEDS, PROGRAM_FOLDER
from tapml_rpc.security.private_files import make_folder
from tapml_targets.cache_folder import cache_folder
from tapml_targets.errors import SetupError

_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"


def kept_code() -> dict[str, str]:
    """Where compiled code is kept: what is there is run, so only this user may write there."""
    if chosen := os.environ.get(_CACHE):
        return {_CACHE: chosen}
    try:
        folder = cache_folder("inductor")
        make_folder(folder)
        if folder.stat().st_uid == os.getuid():
            return {_CACHE: str(folder)}
    except (OSError, SetupError):
        pass
    # Each process keeps its code in its own scratch folder then.
    return {}


DESCRIPTION = Description(
    title="PyTorch, torch.compile",
    formats=(PROGRAM_FOLDER,),
    packages={"torch": "torch>=2.13,<2.14"},
    without=("tensorflow",),
    needs=NEEDS,
    # What was compiled once is kept for later processes.
    variables=kept_code(),
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
