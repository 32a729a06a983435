"""Where an operation comes from: read from the stack trace and module stack of its FX node."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import torch
from torch import fx

from tapml.graph.plan import Origin

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# torch.export marks the second call of a module as ``act@1``.
_CALL_NUMBER = re.compile(r"@\d+")
_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_NO_STACK = "_empty_nn_module_stack"
_TORCH = str(Path(torch.__file__).parent)


def origins_of(nodes: Iterable[fx.Node], prefix: str = "") -> dict[str, Origin]:
    """The origin of every FX node that calls something, by node name.

    A node without a trace of its own (a size read for a shape) takes the place of the first of its
    inputs that has one, and else of its first user.

    Parameters
    ----------
    nodes
        Nodes of one exported graph.
    prefix
        Path of the model inside the exported wrapper; it is taken off the module paths.
    """
    return {node.name: _origin(node, prefix) for node in nodes if node.op == "call_function"}


def _origin(node: fx.Node, prefix: str) -> Origin:
    traced = next((near for near in _nearby(node) if _source(near)), node)
    return Origin(
        module_path=_module_path(traced, prefix),
        source=_source(traced),
        operation=str(node.target),
        node=node.name,
    )


def _nearby(node: fx.Node) -> Iterator[fx.Node]:
    """The node, its inputs and theirs, then its users and theirs."""
    for neighbours in ("all_input_nodes", "users"):
        seen = {node}
        waiting = [node]
        while waiting:
            current = waiting.pop(0)
            yield current
            for neighbour in getattr(current, neighbours):
                if neighbour not in seen:
                    seen.add(neighbour)
                    waiting.append(neighbour)


def _source(node: fx.Node) -> str:
    """The innermost frame outside torch, or where a torch module is used alone, inside it."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    # Passes of torch.export sign their nodes with a relative path; that is no place in a model.
    real = [(path, line) for path, line in frames if Path(path).is_absolute()]
    outside = [(path, line) for path, line in real if not path.startswith(f"{_TORCH}/")]
    for path, line in (outside or real)[-1:]:
        return f"{_relative(path)}:{line}"
    return ""


@cache
def _relative(path: str) -> str:
    """The path as an import would spell it: relative to the longest folder of ``sys.path``."""
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
    """`path` seen from inside the module at `prefix`."""
    if prefix and path == prefix:
        return ""
    return path.removeprefix(f"{prefix}.") if prefix else path


def layer_of(module_path: str) -> int | None:
    """Index of the decoder layer: the first number in a module path."""
    found = _LAYER.search(module_path)
    return int(found.group(1)) if found else None
