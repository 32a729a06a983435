"""Finds an operation's origin from the stack trace and module stack of its FX node."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from functools import cache
from operator import itemgetter
from pathlib import Path

import torch
from torch import fx

from tapml.plan.graph_plan import Origin

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# torch.export marks the second call of a module as ``act@1``.
_CALL_NUMBER = re.compile(r"@\d+")
_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_NO_STACK = "_empty_nn_module_stack"
_TORCH = str(Path(torch.__file__).parent)


def origins_of(nodes: Iterable[fx.Node], prefix: str = "") -> dict[str, Origin]:
    """The origin of every FX node that calls something, by node name.

    A node without a trace (a size read for a shape) gets the origin of the nearest producer that
    has one, or else of the nearest consumer.

    Parameters
    ----------
    nodes
        All nodes of one exported graph, in order.
    prefix
        Path of the model inside the exported wrapper; removed from the module paths.
    """
    nodes = list(nodes)
    sources = {node: _source(node) for node in nodes}
    above = _nearest(nodes, sources, "all_input_nodes")
    below = _nearest(reversed(nodes), sources, "users")
    return {
        node.name: _origin(node, above.get(node) or below.get(node) or node, prefix, sources)
        for node in nodes
        if node.op == "call_function"
    }


def module_line() -> str:
    """File and line of the module whose forward runs now."""
    ours = Path(__file__).resolve().parent.parent
    theirs = Path(_TORCH).resolve()
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if not (path.is_relative_to(ours) or path.is_relative_to(theirs)) and path.exists():
            return f"{'/'.join(path.parts[-3:]).lstrip('/')}:{frame.lineno}"
    return "the module"


def _origin(node: fx.Node, traced: fx.Node, prefix: str, sources: Mapping[fx.Node, str]) -> Origin:
    return Origin(
        module_path=_module_path(traced, prefix),
        source=sources[traced],
        operation=str(node.target),
        node=node.name,
    )


def _nearest(
    nodes: Iterable[fx.Node], sources: Mapping[fx.Node, str], neighbours: str
) -> dict[fx.Node, fx.Node]:
    """The nearest node with a trace, for each node that has one in this direction.

    `nodes` come after their `neighbours`. Ties go to the first neighbour.
    """
    found: dict[fx.Node, tuple[int, fx.Node]] = {}
    for node in nodes:
        if sources[node]:
            found[node] = 0, node
            continue
        near = [found[each] for each in getattr(node, neighbours) if each in found]
        if near:
            distance, nearest = min(near, key=itemgetter(0))
            found[node] = distance + 1, nearest
    return {node: nearest for node, (_, nearest) in found.items()}


def _source(node: fx.Node) -> str:
    """The innermost frame outside torch; inside torch if a torch module is used alone."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    # Passes of torch.export sign their nodes with a relative path, which is not in the model.
    real = [(path, line) for path, line in frames if Path(path).is_absolute()]
    outside = [(path, line) for path, line in real if not path.startswith(f"{_TORCH}/")]
    for path, line in (outside or real)[-1:]:
        return f"{_relative(path)}:{line}"
    return ""


@cache
def _relative(path: str) -> str:
    """The path as in an import: relative to the longest matching folder of ``sys.path``."""
    roots = sorted((root for root in sys.path if root), key=len, reverse=True)
    for root in roots:
        if path.startswith(root.rstrip("/") + "/"):
            return path[len(root.rstrip("/")) + 1 :]
    return Path(path).name


def _module_path(node: fx.Node, prefix: str) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = ""
    for entry in stack.values():
        path = "" if entry[0].startswith(_NO_STACK) else entry[0]
    return strip_prefix(_CALL_NUMBER.sub("", path), prefix)


def strip_prefix(path: str, prefix: str) -> str:
    """`path` relative to the module at `prefix`."""
    if prefix and path == prefix:
        return ""
    return path.removeprefix(f"{prefix}.") if prefix else path


def layer_of(module_path: str) -> int | None:
    """Index of the decoder layer: the first number in a module path."""
    found = _LAYER.search(module_path)
    return int(found.group(1)) if found else None
