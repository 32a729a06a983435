"""What the recurrences of RWKV5 and RWKV6 share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tapml.own_operators.own_operator import OwnOperator

if TYPE_CHECKING:
    from torch import Tensor


def recurrence(name: str, *, decay_by_token: bool) -> OwnOperator:
    """The operator of one version: its decay is ``[heads, head size]``, or that for each token."""

    def compute(
        receptance: Tensor, key: Tensor, value: Tensor, decay: Tensor, bonus: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        decays = decay if decay_by_token else decay.expand(len(key), *decay.shape)
        return run_recurrence(receptance, key, value, decays, bonus, state)

    def shapes(receptance: Tensor, *rest: Tensor) -> tuple[Any, Any]:
        return receptance.new_empty(receptance.shape), rest[-1].new_empty(rest[-1].shape)

    return OwnOperator(
        name=name,
        schema="(Tensor receptance, Tensor key, Tensor value, Tensor decay, Tensor bonus, "
        "Tensor state) -> (Tensor, Tensor)",
        compute=compute,
        shapes=shapes,
        function=lambda *types: make_function(types, decay_by_token=decay_by_token),
        # Outputs have the type of the receptance, the new state that of the old one.
        results=lambda *types: [types[0], types[-1]],
    )


def run_recurrence(
    receptance: Tensor, key: Tensor, value: Tensor, decay: Tensor, bonus: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token, in the dtype of the tensors.

    Parameters
    ----------
    receptance, key, value, decay
        ``[tokens, heads, head size]``.
    bonus
        ``[heads, head size]``.
    state
        ``[heads, head size, head size]``, key first.

    Returns
    -------
    outputs, state
        Of the shapes of `receptance` and `state`.

    Raises
    ------
    ValueError
        If the shapes do not fit: the oracle runs it on stored data.
    """
    import torch

    tokens, heads, size = receptance.shape
    expected = ((tokens, heads, size),) * 4 + ((heads, size), (heads, size, size))
    given = tuple(tuple(each.shape) for each in (receptance, key, value, decay, bonus, state))
    if given != expected:
        raise ValueError(f"a recurrence of tensors {given}: expected {expected}")
    outputs = []
    for r, k, v, w in zip(receptance, key, value, decay, strict=True):
        product = k[:, :, None] * v[:, None, :]
        outputs.append((r[:, :, None] * (bonus[:, :, None] * product + state)).sum(1))
        state = w[:, :, None] * state + product
    return torch.stack(outputs), state.clone()


def make_function(types: Sequence[Any], *, decay_by_token: bool) -> Any:
    """The recurrence as a PrimFunc: a block for each head and channel of the value.

    A block goes through the tokens in order, and alone writes its column of the state.
    """
    from tvm import tirx
    from tvm.script import tirx as T

    given = types[0]
    fixed, heads, size = given.shape
    dtype = str(given.dtype)
    length: Any = fixed if isinstance(fixed, tirx.IntImm) else None

    def decay_shape(tokens: Any) -> tuple[Any, ...]:
        return (tokens, heads, size) if decay_by_token else (heads, size)

    def decay_at(decay: Any, token: Any, head: Any, row: Any) -> Any:
        return decay[token, head, row] if decay_by_token else decay[head, row]

    def all_decays(decay: Any, tokens: Any, head: Any) -> Any:
        return decay[0:tokens, head, 0:size] if decay_by_token else decay[head, 0:size]

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def wkv(  # noqa: PLR0917
        receptance_data: T.handle,
        key_data: T.handle,
        value_data: T.handle,
        decay_data: T.handle,
        bonus_data: T.handle,
        state_data: T.handle,
        outputs_data: T.handle,
        updated_data: T.handle,
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        tokens = T.int64()
        receptance = T.match_buffer(receptance_data, (tokens, heads, size), dtype)
        key = T.match_buffer(key_data, (tokens, heads, size), dtype)
        value = T.match_buffer(value_data, (tokens, heads, size), dtype)
        decay = T.match_buffer(decay_data, decay_shape(tokens), dtype)
        bonus = T.match_buffer(bonus_data, (heads, size), dtype)
        state = T.match_buffer(state_data, (heads, size, size), dtype)
        outputs = T.match_buffer(outputs_data, (tokens, heads, size), dtype)
        updated = T.match_buffer(updated_data, (heads, size, size), dtype)
        for head, column in T.grid(heads, size):
            with T.sblock("wkv"):
                h, j = T.axis.remap("SS", [head, column])
                T.reads(
                    receptance[0:tokens, h, 0:size],
                    key[0:tokens, h, 0:size],
                    value[0:tokens, h, j],
                    all_decays(decay, tokens, h),
                    bonus[h, 0:size],
                    state[h, 0:size, j],
                )
                T.writes(outputs[0:tokens, h, j], updated[h, 0:size, j])
                for row in range(size):
                    updated[h, row, j] = state[h, row, j]
                for token in range(tokens):
                    outputs[token, h, j] = T.Cast(dtype, T.float32(0))
                    for row in range(size):
                        outputs[token, h, j] = outputs[token, h, j] + receptance[token, h, row] * (
                            bonus[h, row] * key[token, h, row] * value[token, h, j]
                            + updated[h, row, j]
                        )
                        updated[h, row, j] = (
                            decay_at(decay, token, h, row) * updated[h, row, j]
                            + key[token, h, row] * value[token, h, j]
                        )

    return of_length(wkv, length)


def of_length(function: Any, length: Any) -> Any:
    """The function for a fixed number of tokens, the first extent of its first parameter."""
    from tvm import tirx

    if length is None:
        return function
    parameter = function.params[0]
    shape = [length, *list(parameter.ty.shape)[1:]]
    buffer = tirx.decl_buffer(shape, str(parameter.ty.dtype), name=parameter.name)
    return function.specialize({parameter: buffer})
