"""Translates an FX graph to Relax; every variable is named after its FX node.

TVM's importer translates operation by operation. Relax spans do not survive TVM's passes, but names
do: every converter is wrapped, and the variables it emits are named ``fx<index>__`` with the index
of its node. Operations without a converter are all reported before the import starts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import sympy  # type: ignore[import-untyped]
import torch
import tvm
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tapml.importing import (
    bit_views,
    divisions,
    index_put,
    packed_weights,
    promotion,
    reductions,
    shifts,
)
from tapml.importing.calls_beside import is_same
from tapml.importing.exporting import ExportedEntry
from tapml.importing.never_negative import is_never_negative
from tapml.importing.tir_patterns import OPAQUE
from tapml.own_operators import own_operators
from tapml.own_operators.own_operator import OwnOperator
from tapml.plan.graph_plan import Origin
from tapml_targets.errors import UnsupportedOperatorError

_NAME = re.compile(r"^fx(\d+)__\d*$")
_CONTRACTIONS = ("relax.matmul", "relax.nn.conv")
_NARROW = ("float16", "bfloat16")
# Tensor, axis, begin, end and step where a slice leaves them out.
_SLICE: tuple[Any, ...] = (None, 0, None, None, 1)


class NodeNames:
    """Maps names of Relax variables to FX nodes; `nodes` has the nodes' names by index."""

    def __init__(self, nodes: list[str], results: dict[str, str]) -> None:
        self.nodes = nodes
        self._results = results

    def node(self, variable: str) -> str | None:
        """The FX node that `variable` was emitted for."""
        found = _NAME.match(variable)
        return self.nodes[int(found.group(1))] if found else None

    def value(self, variable: str) -> str:
        """The name of the value that `variable` becomes.

        The node's name, with an index if it returns several tensors. For an intermediate, or a
        variable without a node, the name ends in a dot, and the caller appends a number.
        """
        return self._results.get(variable, f"{self.node(variable) or 'value'}.")


@dataclass(frozen=True)
class TranslatedEntry:
    """The Relax module of an entry: function ``main``, with the weights after the inputs."""

    module: Any
    names: NodeNames


def translate(exported: ExportedEntry) -> TranslatedEntry:
    """Translate an exported entry to Relax.

    Raises
    ------
    UnsupportedOperatorError
        If operations have no converter (checked before translation), or a converter refuses its
        arguments; the message names the operation and its line.
    """
    importer = _NamingImporter(exported.symbols)
    entry = exported.description.name
    check_supported(exported.program, exported.origins, importer.convert_map.keys(), entry)
    try:
        module = importer.from_exported_program(
            exported.program,
            keep_params_as_input=True,
            unwrap_unit_return_tuple=False,
            no_bind_return_tuple=False,
            custom_convert_map=None,
        )
    except Exception as error:
        node = importer.current
        if node is None:
            raise UnsupportedOperatorError(f"{entry!r} cannot be imported: {error}") from error
        origin = exported.origins[node.name]
        raise UnsupportedOperatorError(
            f"{entry!r} cannot be imported: {origin.operation} in "
            f"{origin.module_path or 'the model'} ({origin.source}): {error}"
        ) from error
    # The weights are stored next to the plan, not in the module.
    module["main"] = module["main"].without_attr("params")
    return TranslatedEntry(module, NodeNames(importer.nodes, importer.results))


def check_importable(exported: ExportedEntry) -> None:
    """Raise :class:`UnsupportedOperatorError` as :func:`translate`, for what has no converter."""
    known = _NamingImporter(exported.symbols).convert_map.keys()
    check_supported(exported.program, exported.origins, known, exported.description.name)


class _NamingImporter(ExportedProgramImporter):  # type: ignore[misc]
    """TVM's importer with named variables and corrected conversions."""

    def __init__(self, symbols: dict[str, str]) -> None:
        self._builder: NamingBuilder | None = None
        self._symbols = symbols
        self.current: fx.Node | None = None
        self.nodes: list[str] = []
        self.results: dict[str, str] = {}
        super().__init__()
        self.convert_map["clamp.default"] = self._clamp_integers(self.convert_map["clamp.default"])
        self.convert_map["select.int"] = self._select_from_end(self.convert_map["select.int"])
        self.convert_map["index.Tensor"] = self._index_from_end(self.convert_map["index.Tensor"])
        self.convert_map["slice.Tensor"] = self._slice_of_rows(self.convert_map["slice.Tensor"])
        self.convert_map["div.Tensor_mode"] = self._quotient
        self.convert_map[bit_views.NAME] = bit_views.converter(self)
        self.convert_map[index_put.NAME] = index_put.converter(
            self, self.convert_map[index_put.NAME], self._from_start
        )
        for name, logical in _LOGICAL.items():
            self.convert_map[name] = self._of_predicates(self.convert_map[name], logical)
        for name in _COMPARISONS:
            self.convert_map[name] = self._compared(self.convert_map[name])
        for added in (reductions, shifts):
            self.convert_map |= added.converters(self)
        promotion.correct(self, self.convert_map)
        self.convert_map |= divisions.converters(self, dict(self.convert_map))
        for own in own_operators().values():
            self.convert_map[f"{own.name}.default"] = self._own(own)
        self.convert_map[packed_weights.CONVERTER] = partial(packed_weights.convert, self)
        for name, converter in self.convert_map.items():
            self.convert_map[name] = self._named(converter)

    @property
    def block_builder(self) -> Any:
        """The builder of the function being translated; it names what is emitted."""
        return self._builder

    @block_builder.setter
    def block_builder(self, builder: Any) -> None:
        self._builder = NamingBuilder(builder, self) if builder is not None else None

    def _named(self, converter: Callable[..., Any]) -> Callable[..., Any]:
        def convert(node: fx.Node, *rest: Any) -> Any:
            self.current = node
            self.nodes.append(node.name)
            result = converter(node, *rest)
            if isinstance(result, tvm.ir.Call):
                # Pools of what has no batch leave their last operation out of the function.
                result = self.block_builder.emit(result)
            if isinstance(result, tuple | list):
                self.note_results(result)
            elif isinstance(result, tvm.ir.Var) and self._is_own(result):
                self.results[result.name] = node.name
            self.current = None
            return result

        return convert

    def note_results(self, parts: Iterable[Any]) -> None:
        """Note the tensors of a result with several parts."""
        for index, part in enumerate(parts):
            if self.current is not None and isinstance(part, tvm.ir.Var) and self._is_own(part):
                self.results[part.name] = f"{self.current.name}[{index}]"

    def _is_own(self, variable: Any) -> bool:
        """Whether a variable was emitted for the current node rather than passed through."""
        return str(variable.name).startswith(f"fx{len(self.nodes) - 1}__")

    def _reshape(self, node: fx.Node) -> Any:
        """TVM's shortcut for an equal shape asks Python whether symbols are equal, and fails."""
        try:
            return super()._reshape(node)
        except ValueError:
            operand, *rest = self.retrieve_args(node)
            shape = rest[0] if isinstance(rest[0], tuple | list) else rest
            return self._emit_torch_reshape(operand, shape)

    def _own(self, operator: OwnOperator) -> Callable[..., Any]:
        """Call the kernel function of an operator of ours."""

        def convert(node: fx.Node) -> Any:
            operands = [self.env[each] for each in node.args]
            types = [each.ty for each in operands]
            function = operator.function(*types).with_attr("op_pattern", OPAQUE)
            variable = self.block_builder.add_func(function, operator.name)
            call = relax.call_tir(variable, relax.Tuple(operands), operator.results(*types))
            return self.block_builder.emit(call)

        return convert

    def _clamp_integers(self, converter: Callable[..., Any]) -> Callable[..., Any]:
        """Clamp integers at an open end, for which TVM writes an infinity no integer can hold."""

        def convert(node: fx.Node) -> Any:
            operand, *bounds = self.retrieve_args(node)
            low, high = (*bounds, None, None)[:2]
            low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
            integers = "int" in str(operand.ty.dtype)
            if not integers or not all(
                bound is None or isinstance(bound, int) for bound in (low, high)
            ):
                return converter(node)
            if low is not None:
                low = relax.const(low, operand.ty.dtype)
                operand = self.block_builder.emit(relax.op.maximum(operand, low))
            if high is not None:
                high = relax.const(high, operand.ty.dtype)
                operand = self.block_builder.emit(relax.op.minimum(operand, high))
            return operand

        return convert

    def _quotient(self, node: fx.Node) -> Any:
        """Both sides in the result's dtype; TVM takes a number for an int32, and cuts off twice."""
        kind = str(node.meta["val"].dtype).removeprefix("torch.")
        operand, divisor = (self._as_dtype(each, kind) for each in self.retrieve_args(node)[:2])
        mode = node.kwargs.get("rounding_mode")
        if mode == "floor":
            return self.block_builder.emit(relax.op.floor_divide(operand, divisor))
        quotient = self.block_builder.emit(relax.op.divide(operand, divisor))
        if mode is None or "int" in kind:
            return quotient
        return self.block_builder.emit(relax.op.trunc(quotient))

    def _as_dtype(self, value: Any, dtype: str) -> Any:
        if not isinstance(value, relax.Expr):
            return relax.const(value, dtype)
        if str(value.ty.dtype) == dtype:
            return value
        return self.block_builder.emit(relax.op.astype(value, dtype))

    def _of_predicates(
        self, converter: Callable[..., Any], logical: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Operations on the bits of predicates, and their products and sums, by what they mean."""

        def convert(node: fx.Node) -> Any:
            given = self.retrieve_args(node)[:2]
            kinds = {str(each.ty.dtype) if isinstance(each, relax.Expr) else "" for each in given}
            if kinds != {"bool"}:
                return converter(node)
            return self.block_builder.emit(logical(*given))

        return convert

    def _compared(self, converter: Callable[..., Any]) -> Callable[..., Any]:
        """Compare predicates as bytes, since TVM's code for processors compares them as floats.

        TVM simplifies ``x == x`` to true, also where x may be NaN.
        """

        def convert(node: fx.Node) -> Any:
            first, second = node.args
            operation = str(node.target).split(".")[1]
            itself = is_same(first, second) and operation in {"eq", "ne"}
            if itself and "float" in str(self.env[first].ty.dtype):
                unlike = self.block_builder.emit(relax.op.isnan(self.env[first]))
                if operation == "ne":
                    return unlike
                return self.block_builder.emit(relax.op.logical_not(unlike))
            kept = {each: self.env[each] for each in node.args if isinstance(each, fx.Node)}
            for each, value in kept.items():
                if str(value.ty.dtype) == "bool":
                    self.env[each] = self.block_builder.emit(relax.op.astype(value, "int8"))
            try:
                return converter(node)
            finally:
                self.env.update(kept)

        return convert

    def _select_from_end(self, converter: Callable[..., Any]) -> Callable[..., Any]:
        """TVM's converter takes a negative index as it is; torch counts it from the end."""

        def convert(node: fx.Node) -> Any:
            operand, axis, index = self.retrieve_args(node)
            if not isinstance(index, int) or index >= 0:
                return converter(node)
            axis %= operand.ty.ndim
            begin = operand.ty.shape[axis] + index
            cut = self.block_builder.emit(
                relax.op.strided_slice(operand, [axis], [begin], [begin + 1], assume_inbound=True)
            )
            return self.block_builder.emit(relax.op.squeeze(cut, [axis]))

        return convert

    def _number(self, value: Any) -> Any:
        """An argument that is a number, for TVM."""
        found = self.env[value] if isinstance(value, fx.Node) else value
        found = getattr(found, "value", found) if not isinstance(found, int) else found
        return tvm.tirx.IntImm("int64", found) if isinstance(found, int) else found

    def _slice_of_rows(self, converter: Callable[..., Any]) -> Callable[..., Any]:
        """Slice an extent that only the run knows by the length that torch has found.

        TVM's converter clamps both ends to the extent in the kernel, in 64 bits.
        """

        def convert(node: fx.Node) -> Any:
            arguments: tuple[Any, ...] = tuple(node.args)
            source, axis, begin, end, step = (*arguments, *_SLICE[len(arguments) :])
            given, left = (_extent(each, axis) for each in (source, node))
            operand = self.env[source]
            extent = operand.ty.shape[axis]
            if step != 1:
                return converter(node)
            if given.is_Integer:
                # As many rows of a table as there are tokens: torch knows that it has so many.
                first, last = begin or 0, int(given) if end in {None, sys.maxsize} else end
                if (first, last) == (0, int(given)):
                    return operand  # torch does not know that a row is one for every length.
                if left.is_Integer or sympy.simplify(_value(last) - _value(first) - left) != 0:
                    return converter(node)
                ends = [self._number(first)], [self._number(last)]
                return self.block_builder.emit(
                    relax.op.strided_slice(operand, [axis], *ends, assume_inbound=True)
                )
            if left.is_Integer:
                length = tvm.tirx.IntImm("int64", int(left))
            elif (given - left).is_Integer:
                length = extent - int(given - left)
            else:
                return converter(node)
            if end in {None, sys.maxsize}:
                first = extent - length
            elif isinstance(begin or 0, int) and (begin or 0) >= 0:
                first = tvm.tirx.IntImm("int64", begin or 0)
            else:
                return converter(node)
            simplify = tvm.sym.Analyzer().simplify
            ends = [simplify(first)], [simplify(first + length)]
            return self.block_builder.emit(
                relax.op.strided_slice(operand, [axis], *ends, assume_inbound=True)
            )

        return convert

    def _index_from_end(self, converter: Callable[..., Any]) -> Callable[..., Any]:
        """The same for tensors of indices, whose values only the run knows."""

        def convert(node: fx.Node) -> Any:
            operand, indices = self.env[node.args[0]], cast("Sequence[object]", node.args[1])
            kept = {each: self.env[each] for each in indices if isinstance(each, fx.Node)}
            for axis, each in enumerate(indices):
                if not isinstance(each, fx.Node) or is_never_negative(each):
                    continue
                if "int" in str(kept[each].ty.dtype):
                    self.env[each] = self._from_start(kept[each], operand.ty.shape[axis])
            try:
                axes = [axis for axis, each in enumerate(indices) if each is not None]
                given = [self.env[each] for each in indices if isinstance(each, fx.Node)]
                even = len({each.ty.ndim for each in given}) < 2
                if len(given) < 2 or (even and len(given) == len(indices)):
                    return converter(node)
                if even and _are_orthogonal(given):
                    return converter(node)
                return self._picked(operand, axes, given)
            finally:
                self.env.update(kept)

        return convert

    def _picked(self, operand: Any, axes: Sequence[int], indices: Sequence[Any]) -> Any:
        """Elements at `indices` along `axes`, which belong together: TVM's converter combines each.

        As in torch, the indices' own axes come where `axes` were, or first where those were apart.
        """
        emit, permute = self.block_builder.emit, relax.op.permute_dims
        rest = [axis for axis in range(operand.ty.ndim) if axis not in axes]
        moved = emit(permute(operand, [*axes, *rest]))
        # TVM takes the first axes of all indices for the same ones, PyTorch the last.
        rank = max(each.ty.ndim for each in indices)
        even = [
            emit(relax.op.reshape(each, [*[1] * (rank - each.ty.ndim), *each.ty.shape]))
            if each.ty.ndim < rank
            else each
            for each in indices
        ]
        picked = emit(relax.op.index_tensor(moved, even))
        own = picked.ty.ndim - len(rest)
        before = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
        if not before:
            return picked
        order = [*range(own, own + before), *range(own), *range(own + before, picked.ty.ndim)]
        return emit(permute(picked, order))

    def _from_start(self, indices: Any, extent: Any) -> Any:
        """`indices` with `extent` added to the negative ones."""
        emit, dtype = self.block_builder.emit, str(indices.ty.dtype)
        if isinstance(extent, tvm.tirx.IntImm):
            length = relax.const(int(extent), dtype)
        else:
            bounds = (relax.prim_value(extent), relax.prim_value(extent + 1), relax.prim_value(1))
            one = emit(relax.op.arange(*bounds, dtype))
            length = emit(relax.op.reshape(one, [1] * indices.ty.ndim))
        negative = emit(relax.op.less(indices, relax.const(0, dtype)))
        return emit(relax.op.where(negative, emit(relax.op.add(indices, length)), indices))

    def _process_derived_symbol(self, symbol: Any, variables: dict[str, Any]) -> tuple[str, Any]:
        renamed = {
            old: sympy.Symbol(self._symbols[str(old)], integer=True)
            for old in getattr(symbol, "free_symbols", ())
            if str(old) in self._symbols
        }
        if renamed:
            symbol = symbol.xreplace(renamed)
        return cast("tuple[str, Any]", super()._process_derived_symbol(symbol, variables))


def _differ(first: Any, second: Any) -> Any:
    return relax.op.not_equal(relax.op.astype(first, "int8"), relax.op.astype(second, "int8"))


_COMPARISONS: Final = tuple(
    f"{name}.{kind}"
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for kind in ("Tensor", "Scalar")
)
_LOGICAL: Final[Mapping[str, Callable[..., Any]]] = {
    "mul.Tensor": relax.op.logical_and,
    "add.Tensor": relax.op.logical_or,
    "bitwise_and.Tensor": relax.op.logical_and,
    "bitwise_or.Tensor": relax.op.logical_or,
    "bitwise_xor.Tensor": _differ,
    "logical_xor.default": _differ,
    "bitwise_not.default": relax.op.logical_not,
    "maximum.default": relax.op.logical_or,
    "minimum.default": relax.op.logical_and,
}


def _are_orthogonal(indices: Sequence[Any]) -> bool:
    """Whether each axis of what the indices broadcast to is that of one of them."""
    longest = max(each.ty.ndim for each in indices)
    for axis in range(1, longest + 1):
        extents = [each.ty.shape[-axis] for each in indices if each.ty.ndim >= axis]
        if sum(not (isinstance(each, tvm.tirx.IntImm) and int(each) == 1) for each in extents) > 1:
            return False
    return True


class NamingBuilder:
    """A Relax block builder whose variables are named after the node being converted."""

    def __init__(self, builder: Any, importer: _NamingImporter) -> None:
        self._builder = builder
        self._importer = importer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def emit(self, expression: Any, name_hint: str = "") -> Any:
        """Emit under the current node's name; contractions keep torch's dtype."""
        if self._importer.current is not None:
            name_hint = f"fx{len(self._importer.nodes) - 1}__"
        if isinstance(expression, relax.Tuple):
            self._importer.note_results(expression.fields)
        expression = _within_bounds(expression)
        return _emit_corrected(self._builder, expression, name_hint)

    def emit_te(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Emit a call of a tensor expression."""
        return self.emit(self._builder.call_te(function, *arguments, **options))


def _extent(node: Any, axis: int) -> Any:
    """The extent of a node's tensor, as an expression of symbols."""
    return _value(node.meta["val"].shape[axis])


def _value(number: Any) -> Any:
    """A number of torch as an expression of symbols."""
    found = number.meta["val"] if isinstance(number, fx.Node) else number
    return found.node.expr if isinstance(found, torch.SymInt) else sympy.Integer(found)


def _within_bounds(expression: Any) -> Any:
    """Clamp the indices of TVM's ``take``, which does not check them.

    torch raises on an index out of range. A kernel cannot, and an out-of-bounds read must not crash
    the reference's process.
    """
    if getattr(getattr(expression, "op", None), "name", "") != "relax.take":
        return expression
    data, indices = expression.args
    axis = expression.attrs.axis
    return relax.op.take(data, indices, None if axis is None else int(axis), mode="clip")


def _emit_corrected(builder: Any, expression: Any, name_hint: str) -> Any:
    """Emit the corrected form of a converter's expression.

    Converters write ``out_dtype="float32"`` into every matrix product and convolution. The sum of a
    half-precision product is float32 anyway (in torch, too), but the result must be a half, and a
    product of float64 or of integers must not pass through float32.
    """
    operation = getattr(getattr(expression, "op", None), "name", "")
    if not operation.startswith(_CONTRACTIONS):
        return builder.emit(expression, name_hint)
    operand = str(expression.args[0].ty.dtype)
    out = str(expression.attrs.out_dtype or "")
    if operand in _NARROW and out == "float32":
        return builder.emit(
            relax.op.astype(builder.emit(expression, name_hint), operand), name_hint
        )
    if operand != "float32" and out == "float32" and operation == "relax.matmul":
        expression = relax.op.matmul(expression.args[0], expression.args[1], out_dtype=operand)
    return builder.emit(expression, name_hint)


_SHOWN_PLACES = 3


def check_supported(
    program: torch.export.ExportedProgram,
    origins: Mapping[str, Origin],
    supported: Collection[str],
    entry: str,
) -> None:
    """Check that the importer supports all operations of an exported graph.

    Parameters
    ----------
    program
        The exported program, decomposed.
    origins
        By FX node name.
    supported
        Names of the importer's converters, e.g. ``add.Tensor``.
    entry
        Name of the entry, for the message.

    Raises
    ------
    UnsupportedOperatorError
        Naming every operator without a converter, with module path and source line.
    """
    missing: dict[str, list[Origin]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and _converter_name(node.target) not in supported:
            missing.setdefault(_operation(node), []).append(origins[node.name])
    if not missing:
        return
    lines = []
    for operation, places in missing.items():
        shown = dict.fromkeys(
            f"{place.module_path or 'the model'} ({place.source or 'no source line'})"
            for place in places
        )
        more = f" and {len(shown) - _SHOWN_PLACES} more" if len(shown) > _SHOWN_PLACES else ""
        lines.append(f"  {operation} in {', '.join(list(shown)[:_SHOWN_PLACES])}{more}")
    raise UnsupportedOperatorError(
        f"{entry!r} uses {len(missing)} operator{'s' if len(missing) > 1 else ''} that cannot be "
        "imported:\n" + "\n".join(lines) + "\nRewrite these lines with other torch operations."
    )


def _operation(node: fx.Node) -> str:
    """What a node computes; what has effects is called by torch's ``with_effects``."""
    name = str(node.target)
    return str(node.args[1]) if name == "with_effects" and len(node.args) > 1 else name


def _converter_name(target: object) -> str:
    return str(getattr(target, "__name__", target))
