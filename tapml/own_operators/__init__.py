"""Operators of our own: what no importer knows, one file for each, found by file.

A file defines ``OPERATOR``, an :class:`~tapml.own_operators.own_operator.OwnOperator`: the torch
operation, from which the float64 twins follow, and the kernel function, from which every platform
compiles. The importer, the torch oracle and the check of stored sub-graphs ask here. Kernels
written by hand lie in ``kernels/<operator>/<platform>``, as in every folder shared by sessions.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

from tapml.own_operators.own_operator import NAMESPACE, OwnOperator

KERNELS: Final = Path(__file__).parent / "kernels"
"""Kernels of these operators written by hand, for heads, channels and tokens of any number."""


@cache
def own_operators() -> dict[str, OwnOperator]:
    """Every operator by its name, which is that of its file."""
    found = {}
    for file in pkgutil.iter_modules(__path__):
        operator = getattr(import_module(f"{__name__}.{file.name}"), "OPERATOR", None)
        if isinstance(operator, OwnOperator):
            found[operator.name] = operator
    return found


@cache
def register() -> None:
    """Make every operator known to torch, as ``torch.ops.tapml.<name>``."""
    import torch

    for operator in own_operators().values():
        defined = torch.library.custom_op(
            f"{NAMESPACE}::{operator.name}",
            operator.compute,
            mutates_args=(),
            schema=operator.schema,
        )
        defined.register_fake(operator.shapes)
