"""Takes the multiples of an extent that only a run knows out of remainders by it.

A tensor of (m, n) that is reshaped is read at ``(i * n + j) mod n``. TVM takes ``i * n`` out where
n is a number. Elsewhere it stays, and no bound of it is known that would let 32 bits do for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm_ffi
from tvm import tirx


def without_multiples(function: Any) -> Any:
    """A PrimFunc in which ``(x + k * n) mod n`` is ``x mod n``."""

    def remainder(node: Any) -> Any:
        if isinstance(node.b, tirx.IntImm):
            return node
        terms = list(_terms(node.a))
        kept = [term for term in terms if not _is_multiple(term, node.b)]
        if len(kept) == len(terms):
            return node
        left = kept[0] if kept else tirx.IntImm(str(node.ty), 0)
        for term in kept[1:]:
            left = tirx.Add(left, term)
        return tirx.FloorMod(left, node.b)

    return tvm_ffi.structural_map(function, [(tirx.FloorMod, remainder)])


def _terms(node: Any) -> Iterator[Any]:
    if isinstance(node, tirx.Add):
        yield from _terms(node.a)
        yield from _terms(node.b)
    elif isinstance(node, tirx.Sub):
        yield from _terms(node.a)
        yield tirx.Mul(node.b, tirx.IntImm(str(node.ty), -1))
    else:
        yield node


def _is_multiple(term: Any, divisor: Any) -> bool:
    """Whether the factors of `term` hold those of `divisor`."""
    number, factors = _factors(term)
    wanted, symbols = _factors(divisor)
    for symbol in symbols:
        same = (at for at, each in enumerate(factors) if tvm_ffi.structural_equal(each, symbol))
        place = next(same, None)
        if place is None:
            return False
        del factors[place]
    return wanted != 0 and number % wanted == 0


def _factors(node: Any) -> tuple[int, list[Any]]:
    """The product of the numbers among the factors, and the other factors."""
    if isinstance(node, tirx.Mul):
        (left, first), (right, second) = _factors(node.a), _factors(node.b)
        return left * right, first + second
    return (int(node.value), []) if isinstance(node, tirx.IntImm) else (1, [node])
