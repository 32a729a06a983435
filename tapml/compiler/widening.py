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

from tapml_targets.errors import UnsupportedOperatorError

_FLOAT: Final = re.compile(r"(b?float(?:16|32|64)(?:_\w+)?)((?:x\d+)?)")
_NARROW: Final[dict[str, Any]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# Operations on the bits of a number, which differ in float64.
_BITWISE: Final = frozenset({"tirx.reinterpret", "prim.reinterpret"})


def widen(function: str) -> str:
    """The float64 twin of a PrimFunc in TVM JSON, in which narrower floats become float64.

    A constant keeps its value after rounding to its own type, so that the twin computes the same
    function with less rounding.

    Raises
    ------
    UnsupportedOperatorError
        If the function manipulates the bits of its numbers.
    """
    document = json.loads(function)
    nodes: list[dict[str, Any]] = document["nodes"]
    for node in nodes:
        if node["type"] == "ir.Op" and node.get("data") in _BITWISE:
            raise UnsupportedOperatorError(
                "the function reinterprets the bits of its numbers, so it has no float64 twin; "
                "compare it with an independent float64 implementation instead"
            )
        if node["type"] == "ir.FloatImm":
            _round_constant(node["data"], nodes)
    for node in nodes:
        if node["type"] == "ir.PrimType":
            node["data"]["dtype"] = _widened(node["data"]["dtype"])
    return json.dumps(document)


def _widened(name: str) -> str:
    match = _FLOAT.fullmatch(name)
    return f"float64{match[2]}" if match else name


def _round_constant(data: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    narrow = _NARROW.get(nodes[data["ty"]]["data"]["dtype"])
    value = data["value"]
    if narrow is not None and isinstance(value, float) and math.isfinite(value):
        with np.errstate(over="ignore"):
            data["value"] = float(narrow(value))
