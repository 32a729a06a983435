"""Rewrites squares as products, as PyTorch computes them: no kernel needs ``pow`` for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tapml.importing.relax_function import (
    ENTRY,
    bindings,
    is_one_dataflow_block,
    operation_name,
    with_bindings,
    with_main,
)
from tapml.importing.symbolic import dtype_name


def pow_to_multiply(module: Any) -> Any:
    """Rewrite ``power(x, 2)`` of ``main`` as ``multiply(x, x)``."""
    main = module[ENTRY]
    if not is_one_dataflow_block(main) or not any(map(_is_square, bindings(main))):
        return module
    builder = relax.BlockBuilder()
    changed = []
    for binding in bindings(main):
        if _is_square(binding):
            operand = binding.value.args[0]
            square = builder.normalize(relax.op.multiply(operand, operand))
            changed.append(relax.VarBinding(binding.var, square))
        else:
            changed.append(binding)
    return with_main(module, with_bindings(main, changed))


def _is_square(binding: Any) -> bool:
    if operation_name(binding.value) != "relax.power":
        return False
    exponent = binding.value.args[1]
    if not isinstance(exponent, tvm.ir.GenericConst) or len(exponent.ty.shape.values) > 0:
        return False
    number = np.asarray(exponent.value.numpy())
    # A constant of a dtype that numpy lacks arrives as raw bits, not as a number.
    return number.dtype.name == dtype_name(exponent.ty.dtype) and bool(number == 2)
