"""A function over a segment of a large tensor's rows, so that no binding exceeds a segment.

Two kinds of functions of a single block can be computed one segment of rows after another:

- *Columns*: a row of the tensor corresponds to one index along an axis of the output, as a row of a
  transposed weight to a column of the product. The function is scheduled for fewer rows and
  columns. Then its output gets the full shape again, written from the column that each launch
  passes.
- *Picked rows*, as of an embedding: the function is scheduled unchanged. Then it stores an element
  only if the row that it reads is in the segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from tapml_targets.codegen.expression import call_name
from tapml_targets.codegen.source import SEGMENT_START
from tapml_targets.errors import CompileError

_ROOT: Final = "root"
_INDICES: Final = ("int32", "int64")


@dataclass(frozen=True)
class Piece:
    """A function for segments of one length, and the step after scheduling.

    Attributes
    ----------
    function
        The PrimFunc to schedule.
    finish
        Makes the scheduled module's function one of the segment and of ``SEGMENT_START``, its new
        last parameter; the tensor has a segment's rows, the others have all of theirs.
    """

    function: Any
    finish: Callable[[Any], Any]


def piece_of(function: Any, position: int, rows: int) -> Piece | None:
    """The function for `rows` rows of its tensor at `position`; None if it is of neither kind.

    Parameters
    ----------
    function
        An unscheduled PrimFunc; the tensor is one that it reads.
    position
        Of the tensor among its parameters.
    rows
        Of a segment, at most those of the tensor.
    """
    blocks: list[Any] = []
    tvm_ffi.structural_walk(function.body, (SBlockRealize, blocks.append))
    blocks = [each for each in blocks if str(each.block.name_hint) != _ROOT]
    if len(blocks) != 1 or not isinstance(blocks[0].block.body, tirx.BufferStore):
        return None
    if not isinstance(blocks[0].predicate, tirx.IntImm):
        return None
    tensor = function.params[position]
    row = _row(blocks[0].block, tensor)
    if row is None or str(row.ty) not in _INDICES:
        return None
    return _columns(function, blocks[0], tensor, row, rows) or _picked(
        function, blocks[0].block, tensor, row, rows
    )


def _row(block: Any, tensor: Any) -> Any:
    """The row of every read of the tensor; None if they differ."""
    found: list[Any] = []

    def look(load: Any) -> None:
        if load.source.same_as(tensor):
            found.append(load.indices[0])

    tvm_ffi.structural_walk(block.body, (tvm.ir.TensorLoad, look))
    if not found or not all(tvm_ffi.structural_equal(each, found[0], True) for each in found):
        return None
    return found[0]


def _columns(function: Any, realize: Any, tensor: Any, row: Any, rows: int) -> Piece | None:
    block, store = realize.block, realize.block.body
    axes = {
        each.var: value for each, value in zip(block.iter_vars, realize.iter_values, strict=True)
    }
    spatial = [each for each in block.iter_vars if each.iter_type == tirx.IterVar.DataPar]
    axis = next((each for each in spatial if row.same_as(each.var)), None)
    if axis is None or not isinstance(axes[row], tvm.ir.Var):
        return None
    # If the output has only some of the rows, segments would write beyond it.
    if not _is_number(axis.dom.min, 0) or not _is_number(axis.dom.extent, int(tensor.shape[0])):
        return None
    dimensions = _dimensions(block, row)
    if dimensions is None or store.buffer not in dimensions:
        return None
    kind = str(row.ty)
    loop, extent = axes[row], tirx.IntImm(kind, rows)
    shorter = {buffer: _with_extent(buffer, at, extent) for buffer, at in dimensions.items()}

    def iteration(axis: Any) -> Any:
        if not axis.var.same_as(row):
            return axis
        return tirx.IterVar(tvm.ir.Range(axis.dom.min, extent), axis.var, axis.iter_type)

    def nest(each: Any) -> Any:
        if not each.loop_var.same_as(loop):
            return each
        return tirx.For(
            each.loop_var, each.min, extent, each.kind, each.body, each.thread_binding,
            each.annotations,
        )  # fmt: skip

    made = tvm_ffi.structural_map(
        function,
        [
            (tirx.IterVar, iteration),
            (tirx.For, nest),
            (tvm.ir.Var, lambda variable: shorter.get(variable, variable)),
        ],
    )
    positions = {
        index: (each, dimensions[each])
        for index, each in enumerate(function.params)
        if each in dimensions and not each.same_as(tensor)
    }
    return Piece(made, lambda module: _shifted(module, positions, kind))


def _is_number(expression: Any, number: int) -> bool:
    return isinstance(expression, tirx.IntImm) and int(expression) == number


def _dimensions(block: Any, row: Any) -> dict[Any, int] | None:
    """The dimension that `row` indexes in each tensor; None if it is also used otherwise."""
    found: dict[Any, int] = {}
    without: set[Any] = set()
    good = True

    def note(buffer: Any, indices: Any) -> None:
        nonlocal good
        for at, index in enumerate(indices):
            if index.same_as(row):
                good = good and found.setdefault(buffer, at) == at
            else:
                good = good and not _reads(index, row)
        if not any(index.same_as(row) for index in indices):
            without.add(buffer)

    statements = [block.body] if block.init is None else [block.init, block.body]
    for store in statements:
        if not isinstance(store, tirx.BufferStore):
            return None
        note(store.buffer, store.indices)
        tvm_ffi.structural_walk(
            store.value, (tvm.ir.TensorLoad, lambda load: note(load.source, load.indices))
        )
        outside = tvm_ffi.structural_map(
            store.value, [(tvm.ir.TensorLoad, lambda load: tirx.const(0, str(load.ty)))]
        )
        good = good and not _reads(outside, row)
    # A tensor that is used with and without the row cannot be split.
    return found if good and not without & found.keys() else None


def _reads(expression: Any, variable: Any) -> bool:
    found = False

    def look(each: Any) -> None:
        nonlocal found
        found = found or each.same_as(variable)

    tvm_ffi.structural_walk(expression, (tvm.ir.Var, look))
    return found


def _with_extent(buffer: Any, dimension: int, extent: Any) -> Any:
    shape = list(buffer.shape)
    shape[dimension] = extent
    return tirx.decl_buffer(shape, str(buffer.dtype), str(buffer.name))


def _shifted(module: Any, positions: dict[int, tuple[Any, int]], kind: str) -> Any:
    """The scheduled function with full tensors at `positions`, indexed from the segment's start."""
    ((name, function),) = module.functions_items()
    start = tirx.Var(SEGMENT_START, kind)
    whole = {function.params[at]: found for at, found in positions.items()}
    dimension = dict(positions.values())

    def indices(buffer: Any, given: Any) -> list[Any]:
        moved = list(given)
        moved[dimension[buffer]] = moved[dimension[buffer]] + start
        return moved

    def load(node: Any) -> Any:
        if node.source not in dimension:
            return node
        return node.source[tuple(indices(node.source, node.indices))]

    def store(node: Any) -> Any:
        if node.buffer not in dimension:
            return node
        return tirx.BufferStore(node.buffer, node.value, indices(node.buffer, node.indices))

    def region(node: Any) -> Any:
        if node.source not in dimension:
            return node
        at = dimension[node.source]
        ranges = list(node.region)
        ranges[at] = tvm.ir.Range.from_min_extent(ranges[at].min + start, ranges[at].extent)
        return tvm.ir.TensorRegion(node.source, ranges, node.ty)

    mapped = tvm_ffi.structural_map(
        function,
        [
            (tvm.ir.Var, lambda variable: whole[variable][0] if variable in whole else variable),
            (tvm.ir.TensorLoad, load),
            (tirx.BufferStore, store),
            (tvm.ir.TensorRegion, region),
        ],
    )
    return _module(name, mapped, start)


def _picked(function: Any, block: Any, tensor: Any, row: Any, rows: int) -> Piece | None:
    if any(each.iter_type != tirx.IterVar.DataPar for each in block.iter_vars):
        return None
    # An element that may read no row is in no segment: no launch would store it.
    if _is_read_at_times(block.body.value, tensor):
        return None
    position = next(at for at, each in enumerate(function.params) if each.same_as(tensor))
    extent = tirx.IntImm(str(row.ty), rows)
    return Piece(function, lambda module: _guarded(module, position, extent))


def _is_read_at_times(value: Any, tensor: Any) -> bool:
    """Whether a condition decides if a value reads the tensor."""
    choices: list[Any] = []
    tvm_ffi.structural_walk(value, (tvm.ir.Call, choices.append))
    found: list[Any] = []
    for each in choices:
        if call_name(each) == "if_then_else":
            for branch in each.args[1:]:
                tvm_ffi.structural_walk(branch, (tvm.ir.TensorLoad, found.append))
    return any(load.source.same_as(tensor) for load in found)


def _guarded(module: Any, position: int, extent: Any) -> Any:
    """The scheduled function that stores only elements read from a segment of the tensor."""
    ((name, function),) = module.functions_items()
    kind = str(extent.ty)
    start = tirx.Var(SEGMENT_START, kind)
    tensor = function.params[position]
    segment = _with_extent(tensor, 0, extent)
    picked: list[Any] = []
    given, copies = set(function.params), list[Any]()

    def load(node: Any) -> Any:
        if not node.source.same_as(segment):
            return node
        picked.append(node.indices[0])
        return segment[(node.indices[0] - start, *list(node.indices)[1:])]

    def store(node: Any) -> Any:
        if not picked:
            return node
        row = picked[0]
        picked.clear()
        inside = tirx.And(tirx.GE(row, start), tirx.LT(row, start + extent))
        copies.extend([node.buffer] if node.buffer not in given else [])
        return tirx.IfThenElse(inside, node, None)

    def region(node: Any) -> Any:
        if not node.source.same_as(segment):
            return node
        ranges = [tvm.ir.Range.from_min_extent(tirx.IntImm(kind, 0), extent), *node.region[1:]]
        return tvm.ir.TensorRegion(segment, ranges, node.ty)

    mapped = tvm_ffi.structural_map(
        function,
        [
            (tvm.ir.Var, lambda variable: segment if variable.same_as(tensor) else variable),
            (tvm.ir.TensorLoad, load),
            (tirx.BufferStore, store),
            (tvm.ir.TensorRegion, region),
        ],
    )
    if copies:
        raise CompileError(
            f"the schedule keeps {tensor.name!r} in {copies[0].name!r}: it cannot be one segment's"
        )
    return _module(name, mapped, start)


def _module(name: Any, function: Any, start: Any) -> Any:
    made = tirx.PrimFunc(
        [*function.params, start], function.body, function.ret_type, attrs=function.attrs
    )
    return tvm.IRModule({name: made})
