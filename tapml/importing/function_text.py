"""PrimFuncs as text for storage, and the hash that identifies them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi.serialization import from_json_graph_str

# Attributes that passes add, and the name: they do not affect the result.
_NOTES = ("global_symbol", "op_pattern")


def without_attributes(function: Any) -> Any:
    """The function without the attributes of passes."""
    for note in _NOTES:
        function = function.without_attr(note)
    return function


def tensors_first(function: Any) -> Any:
    """The function with its integers after its tensors, the calling order of a plan."""
    parameters = list(function.params)
    ordered = sorted(parameters, key=tvm.ir.is_prim_var)
    if all(mine.same_as(other) for mine, other in zip(parameters, ordered, strict=True)):
        return function
    return tirx.PrimFunc(ordered, function.body, function.ret_type, function.attrs)


def structural_hash(function: Any) -> str:
    """Hash of a function up to renaming; 16 hexadecimal digits, the same in every process."""
    return f"{tvm_ffi.structural_hash(function) & (2**64 - 1):016x}"


def structurally_equal(left: Any, right: Any) -> bool:
    """Whether two functions differ in names only."""
    return bool(tvm_ffi.structural_equal(left, right))


def with_parameter_names(function: Any, names: Sequence[str]) -> Any:
    """The function with its parameters renamed.

    Otherwise merged functions would have the first layer's tensor names, and two parameters might
    share one. Names are edited in the JSON form: a TVM buffer is a variable whose type contains the
    buffer, so substituting it in the tree would mean rebuilding every access.
    """
    graph = json.loads(tvm.ir.save_json(function))
    nodes = graph["nodes"]
    root = nodes[graph["root_index"]]["data"]
    for index, name in zip(nodes[root["params"]]["data"], names, strict=True):
        nodes[index]["data"]["name"] = len(nodes)
        nodes.append({"type": "ffi.String", "data": name})
    # `tvm.ir.load_json` would first rewrite it as if an earlier version had written it.
    return from_json_graph_str(json.dumps(graph))


def to_json(function: Any, name: str) -> str:
    """The function as TVM JSON, named `name`."""
    return str(tvm.ir.save_json(function.with_attr("global_symbol", name)))


def to_script(function: Any, name: str) -> str:
    """The function as TVMScript."""
    return str(function.with_attr("global_symbol", name).script(show_meta=False))
