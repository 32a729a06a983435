"""The greatest common divisor of two integers, by Euclid's algorithm.

The number of steps is fixed, since kernels of all platforms have the same ones: two integers of 64
bits need no more than 92 remainders (Knuth, "The Art of Computer Programming", section 4.5.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tapml.own_operators.own_operator import OwnOperator
from tapml.own_operators.wkv import of_length

if TYPE_CHECKING:
    from torch import Tensor

# Each takes two remainders.
_STEPS: Final = {"int32": 23, "int64": 46}


def divide(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The divisors of two rows ``[numbers]`` of integers above or at 0, and a row of zeros.

    Raises
    ------
    ValueError
        If the rows do not fit: the oracle runs it on stored data.
    """
    import torch

    if first.shape != second.shape or first.dim() != 1:
        raise ValueError(f"expected two rows, got {tuple(first.shape)}, {tuple(second.shape)}")
    return torch.gcd(first, second), torch.zeros_like(first)


def make_function(*types: Any) -> Any:
    """The divisors as a PrimFunc: a block for each pair."""
    from tvm import tirx
    from tvm.script import tirx as T

    (count,), dtype = types[0].shape, str(types[0].dtype)
    steps = _STEPS[dtype]
    zero = tirx.IntImm(dtype, 0)

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def greatest_divisor(
        first_data: T.handle, second_data: T.handle, found_data: T.handle, rest_data: T.handle
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        numbers = T.int64()
        first = T.match_buffer(first_data, (numbers,), dtype)
        second = T.match_buffer(second_data, (numbers,), dtype)
        found = T.match_buffer(found_data, (numbers,), dtype)
        rest = T.match_buffer(rest_data, (numbers,), dtype)
        for number in range(numbers):
            with T.sblock("greatest_divisor"):
                i = T.axis.remap("S", [number])
                T.reads(first[i], second[i])
                T.writes(found[i], rest[i])
                found[i] = first[i]
                rest[i] = second[i]
                # Either of the two is the divisor once the other is 0.
                for _step in range(steps):
                    if rest[i] != zero:
                        found[i] = T.truncmod(found[i], rest[i])
                    if found[i] != zero:
                        rest[i] = T.truncmod(rest[i], found[i])
                found[i] = T.max(found[i], rest[i])
                rest[i] = zero

    return of_length(greatest_divisor, count if isinstance(count, tirx.IntImm) else None)


def _shapes(first: Tensor, second: Tensor) -> tuple[Any, Any]:
    return first.new_empty(first.shape), second.new_empty(second.shape)


def _results(*types: Any) -> list[Any]:
    return [types[0], types[1]]


OPERATOR = OwnOperator(
    name="greatest_divisor",
    schema="(Tensor first, Tensor second) -> (Tensor, Tensor)",
    compute=divide,
    shapes=_shapes,
    function=make_function,
    results=_results,
)
