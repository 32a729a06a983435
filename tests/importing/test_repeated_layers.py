"""Layers of one kind are decomposed once, and the program is that of all layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from tapml.importing import repeated_layers
from tapml.importing.importer import import_module
from tapml.importing.repeated_layers import decompose
from tapml.importing.written_out import decompositions
from tests.importing.modules import root_module


class Layer(nn.Module):
    """A step on rows with a mask that several layers share."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(width), scale
        self.query, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, rows: Tensor, mask: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The rows ``[n, width]``, and scores ``[n, n]``."""
        one, other = self.query(self.norm(rows)).chunk(2, -1)
        kept.append(one)
        scores = torch.where(mask, one @ other.T * self.scale, -9.0).softmax(-1)
        return rows + functional.gelu(self.out(scores @ one)), scores


class Stack(nn.Module):
    """Layers; each reads what the one before gave, and one of two masks."""

    def __init__(self, scales: list[float]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(8, each) for each in scales)

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """What the last layer gave, and something of every layer."""
        near = torch.arange(rows.shape[0])
        masks = near[:, None] >= near, near[:, None] >= near - 2
        kept: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            rows, scores = layer(rows, masks[number % 2], kept)
        return rows, scores, *kept


def written(graph: fx.Graph) -> list[str]:
    """Every node with its arguments, by places and not by names."""
    places = {node: f"%{place}" for place, node in enumerate(graph.nodes)}
    return [
        f"{node.target} {fx.node.map_arg((node.args, node.kwargs), places.__getitem__)}"
        for node in graph.nodes
    ]


def exported(module: nn.Module) -> torch.export.ExportedProgram:
    dynamic = ({0: torch.export.Dim("n", min=2, max=64)},)
    with torch.no_grad():
        return torch.export.export(module, (torch.randn(5, 8),), dynamic_shapes=dynamic)


@pytest.mark.parametrize(
    ("scales", "kinds"),
    [
        ([0.5] * 6, [6]),
        # Of two kinds in turn, and of one that no other layer is of.
        ([0.5, 0.25, 0.5, 0.25, 0.125, 0.5], [3, 2]),
        ([0.5, 0.25, 0.125], []),
    ],
)
def test_the_program_is_that_of_all_layers(scales: list[float], kinds: list[int]) -> None:
    torch.manual_seed(0)
    module = Stack(scales).eval()
    program = exported(module)
    found = [1 + len(kind.others) for kind in repeated_layers._kinds(program.graph)]
    assert found == kinds
    with torch.no_grad():
        ours, whole = decompose(program), exported(module).run_decompositions(decompositions())
        assert written(ours.graph) == written(whole.graph)
        for here, there in zip(ours.graph.nodes, whole.graph.nodes, strict=True):
            paths = [
                [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
                for node in (here, there)
            ]
            assert paths[0] == paths[1]
        rows = torch.randn(7, 8)
        for one, other in zip(ours.module()(rows), module(rows), strict=True):
            torch.testing.assert_close(one, other)


def test_the_plan_of_repeated_layers_is_rooted() -> None:
    torch.manual_seed(0)
    rows = torch.randn(5, 8)
    imported = import_module(Stack([0.5] * 4).eval(), (rows,))
    report = root_module(imported, [rows.numpy()])
    assert all(each.ratio <= 1 for each in report.compared)
    paths = {call.layer for call in imported.plan.entries["main"].calls}
    assert {0, 1, 2, 3} <= paths
