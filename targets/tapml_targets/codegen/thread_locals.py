"""Moves thread-local buffers from the host's launches into the threads that use them.

TVM's scan allocates its loop variables outside the launch. Lowered unchanged they would become
kernel arguments, one buffer for all threads, in a scope that the host does not have.
"""

from __future__ import annotations

from typing import Any, Final

import tvm_ffi
from tvm import tirx

_LOCAL: Final = "local"
_THREADS: Final = "thread_extent"


def move_into_threads(function: Any) -> Any:
    """`function` with every local buffer outside launches moved into the launches that use it."""
    return tvm_ffi.structural_map(function, [(tirx.SeqStmt, _sink)])


def _sink(sequence: Any) -> Any:
    statements = list(sequence.seq)
    if not any(map(_launches, statements)):
        return sequence
    buffers = [each.buffer for each in statements if _is_local(each)]
    if not buffers:
        return sequence
    kept = [_with_buffers(each, buffers) for each in statements if not _is_local(each)]
    return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)


def _is_local(statement: Any) -> bool:
    return isinstance(statement, tirx.AllocBuffer) and statement.buffer.scope() == _LOCAL


def _binds_threads(statement: Any) -> bool:
    return isinstance(statement, tirx.AttrStmt) and statement.attr_key == _THREADS


def _launches(statement: Any) -> bool:
    """Whether threads start somewhere in `statement`."""
    found = False

    def look(attribute: Any) -> None:
        nonlocal found
        found = found or _binds_threads(attribute)

    tvm_ffi.structural_walk(statement, [(tirx.AttrStmt, look)])
    return found


def _with_buffers(statement: Any, buffers: list[Any]) -> Any:
    """`statement` with the buffers that each launch in it uses reserved by its threads."""

    def reserve(attribute: Any) -> Any:
        if not _binds_threads(attribute) or _launches(attribute.body):
            return attribute
        used = [buffer for buffer in buffers if _uses(attribute.body, buffer)]
        if not used:
            return attribute
        body = tirx.SeqStmt([*map(tirx.AllocBuffer, used), attribute.body])
        return tirx.AttrStmt(attribute.node, attribute.attr_key, attribute.value, body)

    return tvm_ffi.structural_map(statement, [(tirx.AttrStmt, reserve)])


def _uses(statement: Any, buffer: Any) -> bool:
    found = False

    def look(variable: Any) -> None:
        nonlocal found
        found = found or variable.same_as(buffer)

    tvm_ffi.structural_walk(statement, [(tirx.Var, look)])
    return found
