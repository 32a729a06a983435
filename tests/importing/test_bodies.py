"""The unfused form of a fused operator computes what the fused one does."""

from __future__ import annotations

import numpy as np
import torch

from tapml.compiler.reference import compile_reference
from tapml.importing.importer import import_module
from tapml.plan.graph_plan import Operator
from tapml.rooting.interpreter import run_entry
from tapml_targets.expression import evaluate, symbols_of
from tests.importing.modules import root_module
from tests.small_llama import SmallLlama

LENGTH = 3


def random_inputs(operator: Operator) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    symbols = dict.fromkeys(
        (s for p in operator.parameters for e in p.shape for s in symbols_of(e)), LENGTH
    )
    tensors = []
    for parameter in operator.parameters:
        shape = [evaluate(extent, symbols) for extent in parameter.shape]
        if parameter.dtype == "float32":
            tensors.append(generator.standard_normal(shape).astype(np.float32))
        else:
            tensors.append(generator.integers(0, 2, shape).astype(parameter.dtype))
    return tensors


def test_fused_operators_have_bodies_and_single_ones_have_none(llama: SmallLlama) -> None:
    for name, operator in llama.imported.plan.operators.items():
        assert (operator.body is not None) == name.startswith("fused_"), name


def test_every_body_computes_what_its_operator_does(llama: SmallLlama) -> None:
    operators = [o for o in llama.imported.plan.operators.values() if o.body is not None]
    assert len(operators) >= 8
    for operator in operators:
        assert operator.body is not None
        tensors = random_inputs(operator)
        reads = len(operator.read)
        llama.reference[operator.name](*tensors)
        parts = compile_reference(operator.body.operators.values())
        entry = operator.body.entry
        given = dict(zip(entry.inputs, tensors[:reads], strict=True))
        values = run_entry(entry, parts, given)
        for fused, name in zip(tensors[reads:], entry.outputs, strict=True):
            np.testing.assert_allclose(values[name], fused, rtol=1e-5, atol=1e-6)


def test_a_body_takes_the_parameters_of_its_operator_in_their_order(llama: SmallLlama) -> None:
    operator = next(
        o for n, o in llama.imported.plan.operators.items() if n.startswith("fused_rms_norm")
    )
    assert operator.body is not None
    assert operator.body.entry.inputs == ("input_0", "input_1")
    assert operator.body.entry.outputs == ("output_0",)
    assert list(operator.body.operators) == [
        *("multiply", "mean", "add", "rsqrt", "multiply_2", "multiply_3"),
    ]


class Positions(torch.nn.Module):
    """Vectors by position, from how many tokens came before."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = torch.nn.Embedding(50, 8)

    def forward(self, tokens: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """``[1, S, 8]``."""
        positions = torch.arange(tokens.shape[1]) + before[0, 0]
        result: torch.Tensor = tokens + self.vectors(positions[None] + 2)
        return result


def test_a_body_knows_a_length_that_its_operator_gets_as_a_number() -> None:
    given = torch.ones(1, 5, 8), torch.tensor([[7]])
    length = torch.export.Dim("length", min=2, max=40)
    imported = import_module(Positions().eval(), given, dynamic=({1: length}, None))
    (operator,) = (each for each in imported.plan.operators.values() if each.symbols)
    assert operator.body is not None
    assert operator.body.entry.symbols == operator.symbols
    assert root_module(imported, [each.numpy() for each in given]).worst is not None
