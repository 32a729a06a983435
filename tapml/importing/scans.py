"""Lowers sort and scan, which need different functions on CPUs and GPUs.

TVM chooses their implementation by target before it lowers anything else. The graph is lowered
once for all targets, so this makes both: the CPU function goes into the graph, the GPU function
becomes a variant of the same operator, with the same parameters.
"""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any, Final

import tvm
from tvm import relax, tirx
from tvm.relax import transform
from tvm.relax.backend import DispatchSortScan
from tvm.relax.expr_functor import PyExprMutator, mutator

from tapml_targets.errors import UnsupportedOperatorError

SCANS: Final = frozenset(
    {"relax.sort", "relax.argsort", "relax.topk", "relax.cumsum", "relax.cumprod"}
)
_ENTRY = "main"
# TVM's pattern for a function that fuses with nothing.
_OPAQUE = 8
# The kind of target whose sorts and scans are the form for every GPU.
_GPU = "opencl"


def dispatch_scans(module: Any) -> tuple[Any, dict[str, Any]]:
    """Lower the sorts and scans of ``main``.

    Returns
    -------
    module
        With each replaced by a ``call_tir`` of the CPU function.
    variants
        The GPU functions by the name of the CPU function.
    """
    if not any(
        _operation(binding.value) in SCANS
        for block in module[_ENTRY].body.blocks
        for binding in block.bindings
    ):
        return module, {}
    dispatch = _Dispatch(module)
    main = dispatch.visit_expr(module[_ENTRY])
    dispatch.builder_.update_func(module.get_global_var(_ENTRY), main)
    return dispatch.builder_.finalize(), dispatch.variants


def _operation(expression: Any) -> str:
    return str(getattr(getattr(expression, "op", None), "name", ""))


@mutator
class _Dispatch(PyExprMutator):  # type: ignore[misc]
    """Replaces each sort or scan by a call of its CPU function."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.variants: dict[str, Any] = {}
        self._result = ""

    def visit_var_binding_(self, binding: Any) -> None:
        """TVM's hook."""
        self._result = str(binding.var.name)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        """TVM's hook."""
        if _operation(call) not in SCANS:
            return super().visit_call_(call)
        operand = self.visit_expr(call.args[0])
        rows = _rows(call)
        if rows is None:
            return self._call(call, operand, call.ty)
        # TVM's GPU scan takes matrix rows; the CPU function does the same to share a signature.
        flat = self.builder_.emit(relax.op.reshape(operand, rows))
        scan = relax.op.cumsum(flat, axis=1, dtype=call.attrs.dtype, exclusive=False)
        scan = self.builder_.normalize(scan)
        # Keep the name of the view that it becomes, which records the origin.
        result = self.builder_.emit(self._call(scan, flat, scan.ty), self._result)
        return relax.op.reshape(result, call.ty.shape)

    def _call(self, call: Any, operand: Any, result: Any) -> Any:
        _, serial = _implement(call, operand, "llvm")
        implementation, kernels = _implement(call, operand, _GPU)
        cpu = serial.with_attr("op_pattern", _OPAQUE)
        variable = self.builder_.add_func(cpu, _name(implementation, call))
        self.variants[variable.name_hint] = _same_parameters(kernels, cpu)
        types = list(result.fields) if isinstance(result, relax.TupleType) else result
        return relax.call_tir(variable, relax.Tuple([operand]), types)


def _rows(call: Any) -> Any:
    """The matrix shape of a cumulative sum along the last axis; otherwise None."""
    if _operation(call) != "relax.cumsum" or call.attrs.axis is None or call.attrs.exclusive:
        return None
    shape = list(call.ty.shape)
    if int(call.attrs.axis) not in (-1, len(shape) - 1):
        return None
    return relax.ShapeExpr([reduce(mul, shape[:-1], tirx.IntImm("int64", 1)), shape[-1]])


def _implement(call: Any, operand: Any, kind: str) -> tuple[str, Any]:
    """Name and PrimFunc of TVM's implementation of a call for a target kind."""
    builder = relax.BlockBuilder()
    # An extent such as 2*S would add S as an argument; the function binds its own symbol instead.
    shape = [
        extent if isinstance(extent, tirx.IntImm) else tirx.Var(f"extent_{axis}", "int64")
        for axis, extent in enumerate(operand.ty.shape)
    ]
    parameter = relax.Var("input", relax.TensorType(shape, str(operand.ty.dtype)))
    with builder.function(_ENTRY, [parameter]):
        with builder.dataflow():
            alone = tvm.ir.Call(call.op, [parameter], call.attrs, call.ty_args)
            output = builder.emit_output(builder.normalize(alone))
        builder.emit_func_output(output)
    with tvm.target.Target({"kind": kind}):
        module = transform.LegalizeOps()(DispatchSortScan()(builder.get()))
    functions = [
        (variable.name_hint, function)
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc)
    ]
    if len(functions) != 1:
        raise UnsupportedOperatorError(
            f"{_operation(call)} became {len(functions)} functions for {kind}; expected one"
        )
    return functions[0]


def _name(function_name: str, call: Any) -> str:
    """TVM's name of the GPU function, since users search for it."""
    return function_name or _operation(call).rsplit(".", 1)[-1]


def _same_parameters(function: Any, like: Any) -> Any:
    """`function` with its own shape variables replaced by the parameter shapes of `like`."""
    if [str(p.ty.dtype) for p in function.params] != [str(p.ty.dtype) for p in like.params]:
        raise UnsupportedOperatorError("the GPU's and the CPU's function take different tensors")
    shaped = {}
    for mine, theirs in zip(function.params, like.params, strict=True):
        if any(not isinstance(extent, tirx.IntImm) for extent in mine.ty.shape):
            shaped[mine] = tirx.decl_buffer(
                theirs.ty.shape,
                str(mine.ty.dtype),
                name=mine.name,
                data_alignment=mine.ty.data_alignment,
                elem_offset=mine.ty.elem_offset,
                offset_factor=mine.ty.offset_factor,
            )
    return function.specialize(shaped) if shaped else function
