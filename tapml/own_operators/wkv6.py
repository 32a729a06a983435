"""The recurrence of RWKV6: as RWKV5's (:mod:`tapml.own_operators.wkv5`), with a decay per token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tapml.own_operators.own_operator import OwnOperator
from tapml.own_operators.wkv import make_function, run_recurrence, types_of

if TYPE_CHECKING:
    from torch import Tensor


def _compute(
    receptance: Tensor, key: Tensor, value: Tensor, decay: Tensor, bonus: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    return run_recurrence(receptance, key, value, decay, bonus, state)


def _shapes(receptance: Tensor, *rest: Tensor) -> tuple[Any, Any]:
    return receptance.new_empty(receptance.shape), rest[-1].new_empty(rest[-1].shape)


def _function(*types: Any) -> Any:
    return make_function(types, decay_by_token=True)


OPERATOR = OwnOperator(
    name="wkv6",
    schema="(Tensor receptance, Tensor key, Tensor value, Tensor decay, Tensor bonus, "
    "Tensor state) -> (Tensor, Tensor)",
    compute=_compute,
    shapes=_shapes,
    function=_function,
    results=types_of,
)
