"""What an operator of our own is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

NAMESPACE: Final = "tapml"


@dataclass(frozen=True, kw_only=True)
class OwnOperator:
    """An operation of torch with a kernel function of ours.

    Attributes
    ----------
    name
        Of the operation, and of its kernel function in a plan.
    schema
        Its signature as torch writes it; tensors only.
    compute
        Computes it in torch, in the dtype of its arguments: in float64 it is the independent
        oracle of the kernel.
    shapes
        Gives empty results of the right shapes.
    function
        Makes the PrimFunc from the Relax types of the arguments: tensors in, tensors out, loops
        over blocks that any schedule can take.
    results
        The Relax types of the results from those of the arguments.
    """

    name: str
    schema: str
    compute: Callable[..., Any]
    shapes: Callable[..., Any]
    function: Callable[..., Any]
    results: Callable[..., list[Any]]
