"""Layers of one kind are decomposed once, and the program is that of all layers."""

from __future__ import annotations

from collections import OrderedDict

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
        ours, whole = (
            decompose(program)[0],
            exported(module).run_decompositions(decompositions(set())),
        )
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


class Normed(nn.Module):
    """A layer without weights."""

    def forward(self, rows: Tensor) -> Tensor:
        """Rows ``[n, width]``."""
        apart = rows - rows.mean(-1, keepdim=True)
        spread = (apart * apart).mean(-1, keepdim=True)
        return (apart * torch.rsqrt(spread + 1e-5)).tanh() * 0.5 + 1.0


class Joined(nn.Module):
    """Layers that read the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Normed(), Normed()])

    def forward(self, rows: Tensor) -> Tensor:
        """Rows ``[n, width]``, twice."""
        return torch.cat([layer(rows) for layer in self.layers], -1)


class Tied(nn.Module):
    """Layers of which two have one weight, and one reads the middle of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(8, 0.5) for _ in range(3))
        self.layers[2].query = self.layers[0].query

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows ``[n, 8]``."""
        mask = torch.ones(rows.shape[0], rows.shape[0], dtype=torch.bool)
        kept: list[Tensor] = []
        one, scores = self.layers[0](rows, mask, kept)
        two, _ = self.layers[1](one + kept[0], mask, kept)
        three, _ = self.layers[2](two, mask, kept)
        return three, two + kept[1] + scores.sum(-1, keepdim=True), three + kept[2]


class Steps(nn.Module):
    """A layer that reads no number of its rows, but how many there are."""

    def forward(self, rows: Tensor) -> Tensor:
        """Rows ``[n, 8]``."""
        return (torch.zeros_like(rows) + 1).cos().sin().exp().tanh().sigmoid() * 2


class Sized(nn.Module):
    """Layers of extents alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Steps(), Steps()])

    def forward(self, rows: Tensor) -> Tensor:
        """Rows ``[n, 8]``."""
        found: Tensor = self.layers[0](rows) + self.layers[1](rows + 1)
        return found


def test_layers_of_other_modules_are_no_kind() -> None:
    named = [
        nn.Sequential(OrderedDict((f"{name}{place}", nn.Linear(8, 8)) for place in range(8)))
        for name in ("one", "one", "other")
    ]
    module = nn.Sequential(*named)
    (kind,) = repeated_layers._kinds(exported(module).graph)
    assert [layer.path for layer, _ in kind.others] == ["1"]


@pytest.mark.parametrize("module", [Joined(), Tied(), Sized()])
def test_layers_that_share_what_they_read_are_those_of_the_module(module: nn.Module) -> None:
    torch.manual_seed(1)
    ours, _ = decompose(exported(module.eval()))
    rows = torch.randn(6, 8)
    with torch.no_grad():
        torch.testing.assert_close(ours.module()(rows), module(rows))


def test_the_plan_of_repeated_layers_is_rooted() -> None:
    torch.manual_seed(0)
    rows = torch.randn(5, 8)
    imported = import_module(Stack([0.5] * 4).eval(), (rows,))
    report = root_module(imported, [rows.numpy()])
    assert all(each.ratio <= 1 for each in report.compared)
    paths = {call.layer for call in imported.plan.entries["main"].calls}
    assert {0, 1, 2, 3} <= paths
