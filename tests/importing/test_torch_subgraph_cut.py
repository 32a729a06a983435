"""Sub-graphs cut from exported programs compute what the program computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tapml.importing.exporting import ExportedEntry
from tapml.importing.imported import ImportedModel
from tapml.importing.importer import import_module
from tapml.oracles.torch_oracle_run import run_subgraph
from tapml.plan.graph_plan import Operator
from tapml.plan.torch_subgraph import DataType, TorchSubgraph
from tapml.rooting.torch_run import run_torch
from tapml_targets.expression import bind_shape, evaluate
from tests.small_llama import SmallLlama


class Written(torch.nn.Module):
    """A module of one function, and of parameters by name."""

    def __init__(self, function: Callable[..., Any], **parameters: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            self.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(self, *tensors)


def imported(
    function: Callable[..., Any], *inputs: torch.Tensor, dynamic: Any = None, **parameters: Any
) -> ImportedModel:
    return import_module(Written(function, **parameters).eval(), inputs, dynamic=dynamic)


def only(model: ImportedModel) -> tuple[Operator, TorchSubgraph]:
    (operator,) = model.plan.operators.values()
    (form,) = operator.torch_forms
    assert form.subgraph is not None, form.reason
    return operator, form.subgraph


def draw(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).standard_normal(shape).astype(np.float32))


def run(model: ImportedModel, *inputs: torch.Tensor) -> list[np.ndarray]:
    """The only operator's sub-graph, with the module's inputs and weights."""
    operator, subgraph = only(model)
    ((entry),) = model.plan.entries.values()
    (call,) = entry.calls
    given = dict(zip(entry.inputs, (each.numpy() for each in inputs), strict=True))
    tensors = {**model.weights, **given}
    arrays = []
    for name in call.arguments[: len(operator.read)]:
        value = entry.values[name]
        shape = [extent for extent in value.shape if isinstance(extent, int)]
        array = tensors[value.storage]
        arrays.append(array.reshape(shape) if len(shape) == len(value.shape) else array)
    (exported,) = model.exported.values()
    assert isinstance(exported, ExportedEntry)
    expected = run_torch(exported, entry, tensors).outputs
    return run_subgraph(subgraph, operator.parameters, arrays, expected, {})


def test_a_transposed_weight_is_transposed_in_the_subgraph() -> None:
    weight = draw(5, 7)
    model = imported(lambda self, x: x @ self.weight.T, draw(3, 7), weight=weight)
    x = draw(3, 7)
    (result,) = run(model, x)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, x.double() @ weight.double().T, rtol=1e-14)


def test_scalars_have_the_value_they_have_in_the_operators_dtype() -> None:
    model = imported(lambda self, x: x * 0.1 + 1e-5, draw(3, 5))
    x = draw(3, 5)
    (result,) = run(model, x)
    wide = x.numpy().astype(np.float64) * np.float64(np.float32(0.1))
    np.testing.assert_allclose(result, wide + np.float64(np.float32(1e-5)), rtol=1e-15)


def test_casts_to_narrow_dtypes_become_casts_to_float64() -> None:
    model = imported(lambda self, x: x.to(torch.float32) * 0.5, draw(9).half())
    _, subgraph = only(model)
    assert DataType("float32") in dict(subgraph.nodes[0].keywords).values()
    x = draw(9).half()
    operator, _ = only(model)
    (result,) = run_subgraph(subgraph, operator.parameters, [x.numpy()], [np.zeros(9)], {})
    np.testing.assert_array_equal(result, x.numpy().astype(np.float64) * 0.5)


def test_integers_that_torch_scales_are_scaled_in_float64() -> None:
    model = imported(lambda self, n: n / 3, torch.arange(20, dtype=torch.int32))
    (result,) = run(model, torch.arange(20, dtype=torch.int32))
    np.testing.assert_array_equal(result, np.arange(20) / 3)


def test_several_results_and_one_of_several_are_told_apart() -> None:
    model = imported(lambda self, x: torch.topk(x, 3), draw(4, 16))
    operator, subgraph = only(model)
    assert [output.index for output in subgraph.outputs] == [0, 1]
    assert operator.output_kinds == ("value", "index")
    x = draw(4, 16)
    values, indices = run(model, x)
    expected = torch.topk(x, 3)
    np.testing.assert_array_equal(values, expected.values.numpy())
    np.testing.assert_array_equal(indices, expected.indices.numpy())


def test_a_constant_of_the_importer_is_found_among_torchs() -> None:
    """A buffer is a constant to TVM, which folds what it is multiplied by into it."""

    class Positions(torch.nn.Module):
        table: torch.Tensor
        weight: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.linspace(0, 1, 8))
            self.register_buffer("weight", draw(5, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.table.cos() * 3) @ self.weight.T

    model = import_module(Positions().eval(), (draw(4, 8),))
    for operator in model.plan.operators.values():
        for form in operator.torch_forms:
            assert form.subgraph is not None, (operator.name, form.reason)
    (scaling, *_) = model.plan.operators.values()
    (form,) = scaling.torch_forms
    assert form.subgraph is not None
    assert [node.operation for node in form.subgraph.nodes] == ["aten.mul.Tensor"]


def test_call_sites_that_bake_in_different_numbers_have_forms_of_their_own() -> None:
    model = imported(lambda self, x: (x[0] * 2.0, x[2] * 2.0), draw(3, 6))
    taking = [o for o in model.plan.operators.values() if len(o.torch_forms) == 2]
    assert taking, "one operator takes both rows"
    for operator in taking:
        sites = {site for form in operator.torch_forms for site in form.sites}
        assert sites == {call.site for call in model.plan.sites_of(operator.name)}


def test_dynamic_shapes_are_expressions_over_the_entrys_symbols() -> None:
    length = torch.export.Dim("length", min=2, max=64)

    def doubled(self: Any, x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + torch.zeros(x.shape[0], 1)).repeat(2, 1)

    model = imported(doubled, draw(6, 4), dynamic=(({0: length},),))
    seen = set()
    for operator in model.plan.operators.values():
        (form,) = operator.torch_forms
        assert form.subgraph is not None, form.reason
        x = draw(9, 4).numpy()
        symbols: dict[str, int] = {}
        bind_shape(operator.read[0].shape, x.shape, symbols, operator.name)
        like = np.zeros([evaluate(extent, symbols) for extent in operator.written[0].shape])
        seen |= {each.given for each in form.subgraph.inputs}
        (result,) = run_subgraph(form.subgraph, operator.parameters, [x], [like], {})
        assert result.shape == like.shape
    assert seen == {("length", 4)}


def test_an_operation_that_becomes_two_operators_has_no_subgraph_and_says_why() -> None:
    model = imported(
        lambda self, x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True), draw(4, 8)
    )
    reasons = [f.reason for o in model.plan.operators.values() for f in o.torch_forms]
    assert any("is an intermediate of a torch operation" in each for each in reasons)
    assert any("a step inside a torch operation that cannot be split" in each for each in reasons)


def test_a_language_models_operators_all_have_one(llama: SmallLlama) -> None:
    for operator in llama.imported.plan.operators.values():
        assert [form.reason for form in operator.torch_forms] == [""], operator.name


def test_an_operator_of_too_many_operations_has_no_subgraph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tapml.importing.torch_subgraph_cut.MAX_NODES", 2)
    model = imported(lambda self, x: (x.sin() + x.cos()) * x.tanh(), draw(2, 3))
    reasons = [f.reason for o in model.plan.operators.values() for f in o.torch_forms]
    assert "it is made of more than 2 torch operations" in reasons


def test_a_chain_of_operations_in_one_operator_may_be_longer_than_pythons_stack() -> None:
    def chained(_self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(250):
            x = x.sin()
        return x

    _, subgraph = only(imported(chained, draw(2, 3)))
    assert len(subgraph.nodes) == 250
