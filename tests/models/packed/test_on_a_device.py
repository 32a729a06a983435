"""Layers of formats on a device: eight bits, orders of columns, groups that do not divide a row."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import torch
from torch import nn

from scripts.carved_model import compile_all
from tapml.compiler.compiler import Compiler
from tapml.compiler.link import link_entries
from tapml.execute.plan_runner import PlanRunner
from tapml.importing.importer import import_module
from tapml.models.gguf.blocks import read_blocks
from tapml.models.packed.modules import PackedLinear
from tapml.package.in_process import open_in_process
from tapml_targets.ranking import default_device
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.models.gguf.written import dequantized, random_blocks
from tests.models.packed.checkpoints import COLUMNS, WRITTEN
from tests.models.packed.test_formats import read

KINDS = (
    "gptq v1, 8 bits, act-order",
    "awq, a last group of 16 after two of 24",
)


class Layers(nn.Module):
    """A product with each of several packed matrices; the last one has rows of 256 columns."""

    def __init__(self, layers: list[PackedLinear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *short, wide = self.layers
        parts = [layer(x) for layer in short]
        return torch.cat([*parts, wide(torch.cat([x] * 4, dim=-1))], dim=-1)


def test_layers_of_formats_give_the_products_of_what_they_stand_for(
    require_device: RequireDevice,
) -> None:
    require_device("opencl")
    found = [WRITTEN[kind]() for kind in KINDS]
    blocks = random_blocks("Q5_K", 16, 4 * COLUMNS, 3)
    weights = [*(read(each) for each in found), read_blocks("Q5_K", blocks)]
    x = np.random.default_rng(4).standard_normal((1, 5, COLUMNS)).astype(np.float32)
    parts = [x @ each.matrix.T for each in found]
    parts.append(np.concatenate([x] * 4, axis=-1) @ dequantized("Q5_K", blocks).T)
    expected = np.concatenate(parts, axis=-1)

    layers = Layers([PackedLinear(weight, None) for weight in weights]).eval()
    imported = import_module(layers, [torch.from_numpy(x)])
    assert sum("unpack" in name for name in imported.plan.operators) == len(weights)
    device = default_device("opencl")
    with Compiler(workers=1) as compiler, ExitStack() as stack:
        target = Target("opencl", limits=device.limits)
        compiled = compile_all(compiler, imported.plan.operators.values(), target)
        session = stack.enter_context(open_in_process(device))
        library = link_entries(imported.plan, compiled)
        runner = PlanRunner(imported.plan, imported.weights, library, session)
        stack.enter_context(runner)
        (entry,) = imported.plan.entries.values()
        (output,) = runner.run(entry.name, {entry.inputs[0]: x}).values()
    np.testing.assert_allclose(output, expected, atol=2e-5 * np.abs(expected).max())
