"""PrimFuncs as text: what a plan stores, and the hash it identifies them by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

# What passes note on a function and what its name was say nothing about what it computes.
_NOTES = ("global_symbol", "op_pattern")


def plain(function: Any) -> Any:
    """The function without the notes of passes."""
    for note in _NOTES:
        function = function.without_attr(note)
    return function


def tensors_first(function: Any) -> Any:
    """The function with its integers after its tensors, which is how a plan calls it."""
    parameters = list(function.params)
    ordered = sorted(parameters, key=tvm.ir.is_prim_var)
    if all(mine.same_as(other) for mine, other in zip(parameters, ordered, strict=True)):
        return function
    return tirx.PrimFunc(ordered, function.body, function.ret_type, function.attrs)


def structural_hash(function: Any) -> str:
    """Hash of what a function is but for names; 16 hexadecimal digits, equal in every process."""
    return f"{tvm_ffi.structural_hash(function) & (2**64 - 1):016x}"


def structurally_equal(left: Any, right: Any) -> bool:
    """Whether two functions differ in names only."""
    return bool(tvm_ffi.structural_equal(left, right))


def with_parameter_names(function: Any, names: Sequence[str]) -> Any:
    """The function with other names for its parameters.

    Merged functions would otherwise carry the names of the first layer's tensors, and two
    parameters may have one name. Names are edited in the JSON form: a buffer is a variable whose
    type holds the buffer, so substituting it in the tree would mean rebuilding every access.
    """
    graph = json.loads(tvm.ir.save_json(function))
    nodes = graph["nodes"]
    root = nodes[graph["root_index"]]["data"]
    for index, name in zip(nodes[root["params"]]["data"], names, strict=True):
        nodes[index]["data"]["name"] = len(nodes)
        nodes.append({"type": "ffi.String", "data": name})
    return tvm.ir.load_json(json.dumps(graph))


def to_json(function: Any, name: str) -> str:
    """The function as TVM JSON, named `name`."""
    return str(tvm.ir.save_json(function.with_attr("global_symbol", name)))


def to_script(function: Any, name: str) -> str:
    """The function as TVMScript."""
    return str(function.with_attr("global_symbol", name).script(show_meta=False))
