"""Makes plain assignments of reductions over one element.

dlight drops loops of one round. TVM then takes such a block for one that only assigns, and inlines
what reads its result into both its first value and its step: a bias behind a product over one
element is added twice.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize


def without_unit_reductions(function: Any) -> Any:
    """A PrimFunc in which no block with one statement reduces over one element."""
    dropped: set[Any] = set()

    def loop(node: Any) -> Any:
        # dlight takes no function with a loop that no block has.
        return node.body if node.loop_var in dropped else node

    def block(node: Any) -> Any:
        return _assigned(node, dropped)

    return tvm_ffi.structural_map(function, [(SBlockRealize, block), (tirx.For, loop)])


def _assigned(node: Any, dropped: set[Any]) -> Any:
    """The assignment that a block is; `dropped` gets the loops that it no longer has."""
    block = node.block
    reduced = [axis for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce]
    one_statement = isinstance(block.init, tirx.BufferStore) and isinstance(
        block.body, tirx.BufferStore
    )
    if not (one_statement and reduced and all(_is_one(axis.dom.extent) for axis in reduced)):
        return node
    step, first = block.body, block.init
    places = {axis.var: axis.dom.min for axis in reduced}

    def load(each: Any) -> Any:
        same = each.source.same_as(step.buffer) and all(
            map(tvm_ffi.structural_equal, each.indices, step.indices)
        )
        return first.value if same else each

    def place(variable: Any) -> Any:
        return places.get(variable, variable)

    def at_one(part: Any) -> Any:
        return tvm_ffi.structural_map(part, [(tvm.ir.Var, place)])

    body = tirx.BufferStore(
        step.buffer,
        at_one(tvm_ffi.structural_map(step.value, [(tvm.ir.TensorLoad, load)])),
        step.indices,
    )
    given = list(zip(block.iter_vars, node.iter_values, strict=True))
    kept = [(axis, value) for axis, value in given if axis.var not in places]
    dropped.update(value for axis, value in given if axis.var in places)
    plain = SBlock(
        [axis for axis, _ in kept],
        [at_one(region) for region in block.reads],
        block.writes,
        block.name_hint,
        body,
        None,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    return SBlockRealize([value for _, value in kept], at_one(node.predicate), plain)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1
