"""A PrimFunc that can be called with numpy arrays, on one thread."""

from __future__ import annotations

import json
from typing import Any, Final

_PARALLEL: Final = 1
_SERIAL: Final = 0
_PACKED_CALLS: Final = frozenset({"tirx.tvm_call_packed", "tirx.tvm_call_cpacked"})


def for_host(function: str) -> str:
    """Let buffers start at any element, and run parallel loops in order.

    TVM assumes 64-byte alignment otherwise, and its vector loads fault on numpy arrays and on views
    of storages. Its thread pool would compete with other workers.

    Parameters
    ----------
    function
        The PrimFunc as TVM JSON.
    """
    document = json.loads(function)
    for node in document["nodes"]:
        data: Any = node.get("data")
        if node["type"] == "tirx.BufferType":
            data["data_alignment"] = 1
        elif node["type"] == "tirx.For" and data["kind"] == _PARALLEL:
            data["kind"] = _SERIAL
    return json.dumps(document)


def calls_runtime(function: str) -> bool:
    """Whether the function calls into TVM's runtime, as TVM's sort for CPUs does."""
    return any(
        node["type"] == "ir.Op" and node.get("data") in _PACKED_CALLS
        for node in json.loads(function)["nodes"]
    )
