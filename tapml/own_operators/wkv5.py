"""The recurrence of RWKV5: a matrix of state for each head that decays by channel.

With receptance r, key k and value v of a token, decay w and bonus u of a head, and state s
``[head size, head size]``, key first (Peng et al., "Eagle and Finch", equations 12 to 14)::

    y[j]     = sum over i of r[i] * (u[i] * k[i] * v[j] + s[i, j])
    s'[i, j] = w[i] * s[i, j] + k[i] * v[j]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tapml.own_operators.own_operator import OwnOperator
from tapml.own_operators.wkv import make_function, run_recurrence, types_of

if TYPE_CHECKING:
    from torch import Tensor


def _compute(
    receptance: Tensor, key: Tensor, value: Tensor, decay: Tensor, bonus: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    decays = decay.expand(len(key), *decay.shape)
    return run_recurrence(receptance, key, value, decays, bonus, state)


def _shapes(receptance: Tensor, *rest: Tensor) -> tuple[Any, Any]:
    return receptance.new_empty(receptance.shape), rest[-1].new_empty(rest[-1].shape)


def _function(*types: Any) -> Any:
    return make_function(types, decay_by_token=False)


OPERATOR = OwnOperator(
    name="wkv5",
    schema="(Tensor receptance, Tensor key, Tensor value, Tensor decay, Tensor bonus, "
    "Tensor state) -> (Tensor, Tensor)",
    compute=_compute,
    shapes=_shapes,
    function=_function,
    results=types_of,
)
