"""The recurrence of Mamba2: a matrix of state for each head that decays by one number.

With an input x ``[head size]`` already times its step, projections B and C ``[state size]`` of a
token, decay a and state s ``[head size, state size]`` of a head (Dao and Gu, "Transformers are
SSMs", equation 2)::

    s'[p, n] = a * s[p, n] + x[p] * B[n]
    y[p]     = sum over n of s'[p, n] * C[n]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tapml.own_operators.own_operator import OwnOperator
from tapml.own_operators.wkv import of_length

if TYPE_CHECKING:
    from torch import Tensor


def run_recurrence(
    inputs: Tensor, decay: Tensor, before: Tensor, after: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token, in the dtype of the tensors.

    Parameters
    ----------
    inputs
        ``[tokens, heads, head size]``.
    decay
        ``[tokens, heads]``.
    before, after
        B and C, ``[tokens, groups, state size]``; heads share a group in order.
    state
        ``[heads, head size, state size]``.

    Returns
    -------
    outputs, state
        Of the shapes of `inputs` and `state`.

    Raises
    ------
    ValueError
        If the shapes do not fit: the oracle runs it on stored data.
    """
    import torch

    tokens, heads, size = inputs.shape
    _, groups, width = before.shape
    expected = ((tokens, heads), (tokens, groups, width), (tokens, groups, width))
    given = tuple(tuple(each.shape) for each in (decay, before, after))
    if given != expected or tuple(state.shape) != (heads, size, width) or heads % groups:
        raise ValueError(f"a recurrence of tensors {tuple(inputs.shape)}, {given}: {expected}")
    outputs = []
    for x, a, b, c in zip(inputs, decay, before, after, strict=True):
        of_head = [each.repeat_interleave(heads // groups, 0) for each in (b, c)]
        state = a[:, None, None] * state + x[:, :, None] * of_head[0][:, None, :]
        outputs.append((state * of_head[1][:, None, :]).sum(2))
    return torch.stack(outputs), state.clone()


def make_function(*types: Any) -> Any:
    """The recurrence as a PrimFunc: a block for each head and element of it.

    A block goes through the tokens in order, and alone writes its row of the state.
    """
    from tvm import tirx
    from tvm.script import tirx as T

    fixed, heads, size = types[0].shape
    _, groups, width = types[2].shape
    shared = int(heads) // int(groups)
    dtype = str(types[0].dtype)
    length: Any = fixed if isinstance(fixed, tirx.IntImm) else None

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def ssd(
        inputs_data: T.handle,
        decay_data: T.handle,
        before_data: T.handle,
        after_data: T.handle,
        state_data: T.handle,
        outputs_data: T.handle,
        updated_data: T.handle,
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        tokens = T.int64()
        inputs = T.match_buffer(inputs_data, (tokens, heads, size), dtype)
        decay = T.match_buffer(decay_data, (tokens, heads), dtype)
        before = T.match_buffer(before_data, (tokens, groups, width), dtype)
        after = T.match_buffer(after_data, (tokens, groups, width), dtype)
        state = T.match_buffer(state_data, (heads, size, width), dtype)
        outputs = T.match_buffer(outputs_data, (tokens, heads, size), dtype)
        updated = T.match_buffer(updated_data, (heads, size, width), dtype)
        for head, element in T.grid(heads, size):
            with T.sblock("ssd"):
                h, p = T.axis.remap("SS", [head, element])
                T.reads(
                    inputs[0:tokens, h, p],
                    decay[0:tokens, h],
                    before[0:tokens, h // shared, 0:width],
                    after[0:tokens, h // shared, 0:width],
                    state[h, p, 0:width],
                )
                T.writes(outputs[0:tokens, h, p], updated[h, p, 0:width])
                for column in range(width):
                    updated[h, p, column] = state[h, p, column]
                for token in range(tokens):
                    outputs[token, h, p] = T.Cast(dtype, T.float32(0))
                    for column in range(width):
                        updated[h, p, column] = (
                            decay[token, h] * updated[h, p, column]
                            + inputs[token, h, p] * before[token, h // shared, column]
                        )
                        outputs[token, h, p] = (
                            outputs[token, h, p]
                            + updated[h, p, column] * after[token, h // shared, column]
                        )

    return of_length(ssd, length)


def _shapes(inputs: Tensor, *rest: Tensor) -> tuple[Any, Any]:
    return inputs.new_empty(inputs.shape), rest[-1].new_empty(rest[-1].shape)


def _results(*types: Any) -> list[Any]:
    return [types[0], types[-1]]


_NAMES: Sequence[str] = ("inputs", "decay", "before", "after", "state")

OPERATOR = OwnOperator(
    name="ssd",
    schema=f"({', '.join(f'Tensor {name}' for name in _NAMES)}) -> (Tensor, Tensor)",
    compute=run_recurrence,
    shapes=_shapes,
    function=make_function,
    results=_results,
)
