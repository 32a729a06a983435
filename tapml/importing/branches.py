"""``torch.cond`` as both of its branches, of which each number is chosen.

A graph has no branches. Both are pure functions of the same tensors, so the numbers are those of
``torch.cond``, for the work of both. What a branch gives that is not taken may be anything, NaN
too.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tapml_targets.errors import UnsupportedOperatorError

_COND: Final = torch.ops.higher_order.cond


def both_branches(module: fx.GraphModule) -> None:
    """Replace every ``torch.cond`` in a graph, inner ones too.

    Raises
    ------
    UnsupportedOperatorError
        If what is chosen is more than numbers of one shape: the branches give results of two, one
        changes a tensor, or the condition is of an extent.
    """
    graph = module.graph
    outputs = {each.name for each in graph.output_node().all_input_nodes}
    while found := [node for node in graph.nodes if node.target is _COND]:
        for node in found:
            condition, *branches, operands = node.args
            if not isinstance(condition, fx.Node):
                # Known while the module is exported.
                branches = [branches[0 if condition else 1]] * 2
            with graph.inserting_before(node):
                if isinstance(condition, fx.Node):
                    condition = _scalar(graph, condition)
                yes, no = (_inlined(module, branch, operands) for branch in branches)
                chosen = [_chosen(graph, condition, *each) for each in zip(yes, no, strict=True)]
            for user in list(node.users):
                result, name = chosen[user.args[1]], user.name
                user.replace_all_uses_with(result)
                graph.erase_node(user)
                if name in outputs:
                    result.name = name  # The program's signature has it.
            graph.erase_node(node)
        for node in list(graph.nodes):
            if node.op == "get_attr" and not node.users:
                graph.erase_node(node)
    module.recompile()


def _inlined(module: fx.GraphModule, branch: Any, operands: Any) -> list[Any]:
    """What a branch gives for the operands."""
    inner: Any = module.get_submodule(branch.target)
    placeholders = [node for node in inner.graph.nodes if node.op == "placeholder"]
    known = dict(zip(placeholders, operands, strict=True))
    for node in inner.graph.nodes:
        if node.op == "get_attr":
            name = f"{branch.target}_{node.target}".replace(".", "_")
            module.add_submodule(name, inner.get_submodule(node.target))
            known[node] = module.graph.get_attr(name)
        elif node.op == "output":
            return [known[each] for each in node.args[0]]
        elif getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            raise _refused(f"a branch changes a tensor by {node.target}")
        elif node.op != "placeholder":
            known[node] = module.graph.node_copy(node, known.__getitem__)
    return []


def _scalar(graph: fx.Graph, condition: fx.Node) -> fx.Node:
    """The condition without axes, which would be those of the result too."""
    value = condition.meta.get("val")
    if isinstance(value, torch.SymBool):
        raise _refused("its condition is of an extent, which differs from run to run")
    if value is None or not value.dim():
        return condition
    result = graph.call_function(torch.ops.aten.reshape.default, (condition, []))
    result.meta = dict(condition.meta) | {"val": value.reshape(())}
    return result


def _chosen(graph: fx.Graph, condition: Any, yes: Any, no: Any) -> Any:
    if yes is no:
        return yes
    extents = [each.meta["val"].shape for each in (yes, no)]
    ranks = {len(each) for each in extents}
    if len(ranks) > 1 or not all(
        statically_known_true(a == b) for a, b in zip(*extents, strict=True)
    ):
        raise _refused("its branches give results of two shapes")
    chosen = graph.call_function(torch.ops.aten.where.self, (condition, yes, no))
    chosen.meta = dict(yes.meta)
    return chosen


def _refused(reason: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"torch.cond moves as both of its branches, and {reason}: take torch.where in its place"
    )
