"""Calls that stand in a program's graph beside the one that they replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import fx

Call: TypeAlias = Callable[..., fx.Node]


def calls_beside(node: fx.Node) -> Call:
    """What adds calls to the graph of `node`, with their values and the origin of `node`."""

    def call(target: Any, *arguments: Any, **options: Any) -> fx.Node:
        made = node.graph.call_function(target, arguments, options)
        made.meta = {name: each for name, each in node.meta.items() if name != "val"}
        values: Any = fx.node.map_arg(arguments, lambda each: each.meta["val"])
        with node.meta["val"].fake_mode:
            made.meta["val"] = target(*values, **options)
        return made

    return call


def is_same(one: Any, other: Any) -> bool:
    """Whether two arguments of calls are one value: the same node, or equal calls of the same."""
    if not (isinstance(one, fx.Node) and isinstance(other, fx.Node)):
        return type(one) is type(other) and bool(one == other)
    if one is other:
        return True
    calls = one.op == other.op == "call_function" and one.target == other.target
    return (
        calls
        and one.kwargs == other.kwargs
        and len(one.args) == len(other.args)
        and all(map(is_same, one.args, other.args))
    )
