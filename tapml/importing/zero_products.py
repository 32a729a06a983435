"""Products with a constant zero, which are no numbers where the operand is infinite or none.

TVM takes ``x * 0.0``, ``0.0 / x`` and ``x - x`` for zero, whatever x is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

from tapml.importing.calls_beside import Call, calls_beside, is_same

_aten: Final = torch.ops.aten
_PRODUCTS: Final = (_aten.mul.Tensor, _aten.mul.Scalar)
_QUOTIENTS: Final = (_aten.div.Tensor,)
# How each is filled: the argument that is the number.
_FILLED: Final = {
    _aten.full.default: 1, _aten.full_like.default: 1, _aten.scalar_tensor.default: 0,
}  # fmt: skip


def keep_odd_products(module: fx.GraphModule) -> None:
    """Choose between zero and no number, in place of each such product."""
    for node in list(module.graph.nodes):
        found = _operands(node)
        if found is None:
            continue
        operand, zero, is_odd = found
        with module.graph.inserting_before(node):
            call = calls_beside(node)
            kind = node.meta["val"].dtype
            if not isinstance(zero, fx.Node):
                zero = call(_aten.full.default, [], 0.0, dtype=kind)
            elif zero.meta["val"].dtype != kind:
                zero = call(_aten._to_copy.default, zero, dtype=kind)
            # TVM's ``full`` fails for what is no number.
            one = call(_aten.full.default, [], 1.0, dtype=kind)
            nothing = call(_aten.mul.Scalar, one, math.nan)
            node.args = (is_odd(call, operand), nothing, zero)
        node.kwargs = {}
        node.target = _aten.where.self


def _operands(node: fx.Node) -> tuple[fx.Node, Any, Callable[[Call, fx.Node], fx.Node]] | None:
    """What is multiplied with zero or divides it, the zero, and what makes that no number."""
    if node.target not in (*_PRODUCTS, *_QUOTIENTS, _aten.sub.Tensor) or not _is_float(node):
        return None
    one, other = node.args[:2]
    if node.target is _aten.sub.Tensor:
        same = is_same(one, other) and _is_float(one) and not node.kwargs
        return (one, 0.0, _is_not_finite) if same else None  # type: ignore[return-value]
    if node.target in _QUOTIENTS:
        return (other, one, _divides_to_nothing) if _is_zero(one) and _is_float(other) else None  # type: ignore[return-value]
    for operand, zero in ((one, other), (other, one)):
        if _is_zero(zero) and _is_float(operand):
            return operand, zero, _is_not_finite  # type: ignore[return-value]
    return None


def _is_float(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.meta["val"].is_floating_point()


def _is_zero(value: Any) -> bool:
    if isinstance(value, fx.Node):
        place = _FILLED.get(value.target)  # type: ignore[call-overload]
        return place is not None and _is_zero(value.args[place])
    return isinstance(value, int | float) and value == 0


def _is_not_finite(call: Call, operand: fx.Node) -> fx.Node:
    unlike, infinite = call(_aten.isnan.default, operand), call(_aten.isinf.default, operand)
    return call(_aten.logical_or.default, unlike, infinite)


def _divides_to_nothing(call: Call, operand: fx.Node) -> fx.Node:
    unlike, nothing = call(_aten.isnan.default, operand), call(_aten.eq.Scalar, operand, 0)
    return call(_aten.logical_or.default, unlike, nothing)
