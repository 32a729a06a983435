"""Widens the types in a PrimFunc's JSON to make its float64 twin.

TVM stores types once and refers to them by number, so changing a type node changes every buffer,
constant, cast and cached expression type at once. Rebuilding the tree would mean naming every node
class of an IR that changes with each release.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import ml_dtypes
import numpy as np

_FLOAT: Final = re.compile(r"(b?float(?:16|32|64)(?:_\w+)?)((?:x\d+)?)")
_NARROW: Final[dict[str, Any]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# Operations on the bits of a number, which are those of its own dtype.
_BITWISE: Final = frozenset({"tirx.reinterpret", "prim.reinterpret"})


def widen(function: str) -> str:
    """The float64 twin of a PrimFunc in TVM JSON, in which narrower floats become float64.

    A constant keeps its value after rounding to its own type, so that the twin computes the same
    function with less rounding. Where bits are read as a number, or the bits of a number are read,
    they are those of its own type: the twin rounds to it before, and widens what it has read.
    """
    document = json.loads(function)
    nodes: list[dict[str, Any]] = document["nodes"]
    bitwise = {
        index
        for index, node in enumerate(nodes)
        if node["type"] == "ir.Op" and node.get("data") in _BITWISE
    }
    own: set[int] = set()
    for index in range(len(nodes)) if bitwise else ():
        if nodes[index]["type"] == "ir.Call" and nodes[index]["data"]["op"] in bitwise:
            _keep_bits(nodes, index, own)
    for node in nodes:
        if node["type"] == "ir.FloatImm":
            _round_constant(node["data"], nodes)
    for index, node in enumerate(nodes):
        if node["type"] == "ir.PrimType" and index not in own:
            node["data"]["dtype"] = _widened(node["data"]["dtype"])
    return json.dumps(document)


def _keep_bits(nodes: list[dict[str, Any]], index: int, own: set[int]) -> None:
    """Cast what a call reads to its own type, and what it gives from its own.

    `own` are the numbers of the types that stay.
    """

    def added(kind: str, data: Any) -> int:
        nodes.append({"type": kind, "data": data})
        return len(nodes) - 1

    def type_of(name: str) -> int:
        own.add(added("ir.PrimType", {"span": 0, "dtype": name}))
        return len(nodes) - 1

    def rounded(value: int, name: str) -> int:
        # By way of float32, from which every compiler rounds to the narrower.
        single = _FLOAT.sub(r"float32\2", name)
        for each in dict.fromkeys((single, name)):
            value = added("prim.Cast", {"span": 0, "ty": type_of(each), "value": value})
        return value

    data = nodes[index]["data"]
    (operand,) = nodes[data["args"]]["data"]
    given = nodes[nodes[operand]["data"]["ty"]]["data"]["dtype"]
    wanted = nodes[data["ty"]]["data"]["dtype"]
    if _widened(given) != given:
        data = data | {"args": added("ffi.Array", [rounded(operand, given)])}
    if _widened(wanted) == wanted:
        nodes[index]["data"] = data
        return
    value = added("ir.Call", data | {"ty": type_of(wanted)})
    single = _FLOAT.sub(r"float32\2", wanted)
    if single != wanted:
        value = added("prim.Cast", {"span": 0, "ty": type_of(single), "value": value})
    nodes[index] = {
        "type": "prim.Cast",
        "data": {"span": 0, "ty": nodes[index]["data"]["ty"], "value": value},
    }


def _widened(name: str) -> str:
    match = _FLOAT.fullmatch(name)
    return f"float64{match[2]}" if match else name


def _round_constant(data: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    narrow = _NARROW.get(nodes[data["ty"]]["data"]["dtype"])
    value = data["value"]
    if narrow is not None and isinstance(value, float) and math.isfinite(value):
        with np.errstate(over="ignore"):
            data["value"] = float(narrow(value))
