"""FX graph to Relax, with every variable named after the node it was made for.

TVM's own importer does the translation, operation by operation. Relax spans do not survive its
passes, names do: so every converter is wrapped, and whatever it emits is called ``fx<index>__``
with the index of its node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import sympy  # type: ignore[import-untyped]
import tvm
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tapml.graph.exporting import ExportedEntry
from tapml.graph.unsupported import check_supported
from tapml_targets.errors import UnsupportedOperatorError

_NAME = re.compile(r"^fx(\d+)__\d*$")
_CONTRACTIONS = ("relax.matmul", "relax.nn.conv")
_NARROW = ("float16", "bfloat16")


class NodeNames:
    """What the names of Relax variables say about FX nodes.

    Attributes
    ----------
    nodes
        Names of the FX nodes, by index.
    """

    def __init__(self, nodes: list[str], results: dict[str, str]) -> None:
        self.nodes = nodes
        self._results = results

    def node(self, variable: str) -> str | None:
        """The FX node that `variable` was made for."""
        found = _NAME.match(variable)
        return self.nodes[int(found.group(1))] if found else None

    def value(self, variable: str) -> str:
        """Name of the value that `variable` becomes.

        The node's, with an index where it returns several tensors. Where `variable` was made on
        the way to the result, or for no node, the name ends in a dot, for a number to follow.
        """
        return self._results.get(variable, f"{self.node(variable) or 'value'}.")


@dataclass(frozen=True)
class TranslatedEntry:
    """The Relax module of an entry: function ``main``, parameters after the inputs."""

    module: Any
    names: NodeNames


def translate(exported: ExportedEntry) -> TranslatedEntry:
    """Translate an exported entry to Relax.

    Raises
    ------
    UnsupportedOperatorError
        If operations have no converter (checked before anything is translated), or a converter
        refuses the arguments it gets; the message names the operation and its line.
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
    # The parameters travel beside the plan, not inside the module.
    module["main"] = module["main"].without_attr("params")
    return TranslatedEntry(module, NodeNames(importer.nodes, importer.results))


class _NamingImporter(ExportedProgramImporter):  # type: ignore[misc]
    """TVM's importer, with names, and with what it gets wrong put right."""

    def __init__(self, symbols: dict[str, str]) -> None:
        self._builder: _NamingBuilder | None = None
        self._symbols = symbols
        self.current: fx.Node | None = None
        self.nodes: list[str] = []
        self.results: dict[str, str] = {}
        super().__init__()
        self.convert_map["clamp.default"] = self._clamp_integers(self.convert_map["clamp.default"])
        for name, converter in self.convert_map.items():
            self.convert_map[name] = self._named(converter)

    @property
    def block_builder(self) -> Any:
        """The builder of the function being translated; it names what is emitted."""
        return self._builder

    @block_builder.setter
    def block_builder(self, builder: Any) -> None:
        self._builder = _NamingBuilder(builder, self) if builder is not None else None

    def _named(self, converter: Callable[..., Any]) -> Callable[..., Any]:
        def convert(node: fx.Node, *rest: Any) -> Any:
            self.current = node
            self.nodes.append(node.name)
            result = converter(node, *rest)
            if isinstance(result, tuple | list):
                self.note_results(result)
            elif isinstance(result, tvm.ir.Var) and self._is_own(result):
                self.results[result.name] = node.name
            self.current = None
            return result

        return convert

    def note_results(self, parts: Iterable[Any]) -> None:
        """Note the tensors of a result that consists of several."""
        for index, part in enumerate(parts):
            if self.current is not None and isinstance(part, tvm.ir.Var) and self._is_own(part):
                self.results[part.name] = f"{self.current.name}[{index}]"

    def _is_own(self, variable: Any) -> bool:
        """Whether a variable was made for the current node rather than handed through."""
        return str(variable.name).startswith(f"fx{len(self.nodes) - 1}__")

    def _clamp_integers(self, converter: Callable[..., Any]) -> Callable[..., Any]:
        """An open end is an infinity in TVM's converter, which no integer tensor can hold."""

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

    def _process_derived_symbol(self, symbol: Any, variables: dict[str, Any]) -> tuple[str, Any]:
        renamed = {
            old: sympy.Symbol(self._symbols[str(old)], integer=True)
            for old in getattr(symbol, "free_symbols", ())
            if str(old) in self._symbols
        }
        if renamed:
            symbol = symbol.xreplace(renamed)
        return cast("tuple[str, Any]", super()._process_derived_symbol(symbol, variables))


class _NamingBuilder:
    """A Relax block builder whose variables are named after the node being converted."""

    def __init__(self, builder: Any, importer: _NamingImporter) -> None:
        self._builder = builder
        self._importer = importer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def emit(self, expression: Any, name_hint: str = "") -> Any:
        """Emit under the current node's name; contractions keep the dtype torch gives them."""
        if self._importer.current is not None:
            name_hint = f"fx{len(self._importer.nodes) - 1}__"
        if isinstance(expression, relax.Tuple):
            self._importer.note_results(expression.fields)
        expression = _within_bounds(expression)
        return _emit_corrected(self._builder, expression, name_hint)

    def emit_te(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Emit a call of a tensor expression."""
        return self.emit(self._builder.call_te(function, *arguments, **options))


def _within_bounds(expression: Any) -> Any:
    """TVM's ``take`` reads wherever an index points: here an index out of range meets the end.

    torch raises; a kernel cannot, and one wild read must not take the reference's process along.
    """
    if getattr(getattr(expression, "op", None), "name", "") != "relax.take":
        return expression
    data, indices = expression.args
    axis = expression.attrs.axis
    return relax.op.take(data, indices, None if axis is None else int(axis), mode="clip")


def _emit_corrected(builder: Any, expression: Any, name_hint: str) -> Any:
    """Emit what TVM's converters should have written.

    They write ``out_dtype="float32"`` into every matrix product and convolution. That is how
    half-precision products are summed anyway (torch sums them in float32, too), but the result is a
    half; and a float64 product must not pass through float32. They gather without a look at the
    index, which ends the process where an index is out of range.
    """
    operation = getattr(getattr(expression, "op", None), "name", "")
    if operation == "relax.take" and expression.attrs.mode == "fast":
        operands, axis = expression.args, expression.attrs.axis
        return builder.emit(relax.op.take(*operands, axis=axis, mode="clip"), name_hint)
    if not operation.startswith(_CONTRACTIONS):
        return builder.emit(expression, name_hint)
    operand = str(expression.args[0].ty.dtype)
    out = str(expression.attrs.out_dtype or "")
    if operand in _NARROW and out == "float32":
        return builder.emit(
            relax.op.astype(builder.emit(expression, name_hint), operand), name_hint
        )
    if operand == "float64" and out == "float32" and operation == "relax.matmul":
        expression = relax.op.matmul(expression.args[0], expression.args[1], out_dtype="float64")
    return builder.emit(expression, name_hint)
