"""TVM's folding of constants, without its cost: a function is compiled for a single call.

TVM optimises each of them as if it were to run for hours, and forgets it with the module: a third
of the time that an import takes whose program has many constants.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.relax import transform

# What TVM's pass calls to compile.
_BUILD: Final = "tirx.build"


def fold_constants(module: Any) -> Any:
    """Replace calls whose arguments are constants by what they give.

    Parameters
    ----------
    module
        A Relax module whose calls are all ``call_tir``.
    """
    # Another thread that imports meanwhile gets either of the two, and they compute the same.
    tvm_ffi.register_global_func(_BUILD, _build, override=True)
    try:
        return transform.FoldConstant()(module)
    finally:
        tvm_ffi.register_global_func(_BUILD, tirx.build, override=True)


def _build(function: Any, target: Any) -> Any:
    return _built(tvm_ffi.StructuralKey(function), str(target))


@functools.lru_cache(maxsize=1024)
def _built(function: Any, target: str) -> Any:
    unoptimised = tvm.target.Target({**json.loads(target), "opt-level": 0})
    return tirx.build(function.key, target=unoptimised)
