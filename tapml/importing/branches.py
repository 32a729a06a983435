"""``torch.cond`` as both of its branches, of which each number is chosen.

A graph has no branches. Both are pure functions of the same tensors, so the numbers are those of
``torch.cond``, for the work of both. What a branch gives that is not taken may be anything, NaN
too.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

_COND: Final = torch.ops.higher_order.cond


def both_branches(module: fx.GraphModule) -> None:
    """Replace every ``torch.cond`` in a graph, inner ones too."""
    graph = module.graph
    outputs = {each.name for each in graph.output_node().all_input_nodes}
    while found := [node for node in graph.nodes if node.target is _COND]:
        for node in found:
            condition, *branches, operands = node.args
            if not isinstance(condition, fx.Node):
                # Known while the module is exported.
                branches = [branches[0 if condition else 1]] * 2
            with graph.inserting_before(node):
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
        elif node.op != "placeholder":
            known[node] = module.graph.node_copy(node, known.__getitem__)
    return []


def _chosen(graph: fx.Graph, condition: Any, yes: Any, no: Any) -> Any:
    if yes is no:
        return yes
    chosen = graph.call_function(torch.ops.aten.where.self, (condition, yes, no))
    chosen.meta = dict(yes.meta)
    return chosen
