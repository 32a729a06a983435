"""Powers of integers by tensors of integers, exact also where the product wraps.

A power is the product of those of the exponent's digits, and a digit's power is a product over as
many places as it counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

_aten: Final = torch.ops.aten
_DIGIT_BITS: Final = 6
_DIGIT: Final = 1 << _DIGIT_BITS
_NARROW: Final = (torch.int8, torch.uint8, torch.int16)


def integer_powers() -> dict[Any, Callable[..., Any]]:
    """What is written out here, by operation."""
    return {
        _aten.pow.Tensor_Tensor: _power,
        _aten.pow.Scalar: lambda base, exponent: (
            _power(torch.full((), base, dtype=torch.result_type(base, exponent)), exponent)
            if isinstance(base, int) and not isinstance(base, bool)
            else NotImplemented
        ),
    }


def _power(base: Tensor, exponent: Tensor) -> Any:
    kind = torch.result_type(base, exponent)
    if kind.is_floating_point or kind.is_complex or kind == torch.bool:
        return NotImplemented
    # Products of narrow integers wrap where they become narrow again.
    wide = torch.int32 if kind in _NARROW else kind
    base, exponent = torch.broadcast_tensors(base.to(kind).to(wide), exponent.to(kind).to(wide))  # type: ignore[no-untyped-call]
    found = _of_digits(base, exponent.clamp(min=0), torch.iinfo(kind).bits - 1)
    if kind == torch.uint8:
        return found.to(kind)
    odd = (exponent & 1) == 1
    one = torch.ones_like(base)
    fraction = torch.where((base == 1) | ((base == -1) & ~odd), one, torch.zeros_like(base))
    fraction = torch.where((base == -1) & odd, -one, fraction)
    return torch.where(exponent < 0, fraction, found).to(kind)


def _of_digits(base: Tensor, exponent: Tensor, bits: int) -> Tensor:
    places = torch.arange(_DIGIT, dtype=exponent.dtype)
    found: Any = None
    for first in range(0, bits + 1, _DIGIT_BITS):
        digit = (exponent >> first) & (_DIGIT - 1) if first else exponent & (_DIGIT - 1)
        rows = base.unsqueeze(-1).expand(*base.shape, _DIGIT)
        counted = torch.where(places < digit.unsqueeze(-1), rows, torch.ones_like(rows))
        part = counted.prod(-1, dtype=base.dtype)
        found = part if found is None else found * part
        if first + _DIGIT_BITS <= bits:
            base = rows.prod(-1, dtype=base.dtype)
    return found  # type: ignore[no-any-return]
