"""Packed weights are unpacked in the operator that multiplies by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tapml.compiler.reference import compile_reference
from tapml.importing.importer import import_module
from tapml.models.packed.modules import PackedLinear
from tapml.models.packed.quantizers import SCHEMES
from tapml.models.packed.weight import PackedWeight, pack
from tapml.oracles.torch_oracle_run import run_subgraph

ROWS, COLUMNS = 24, 64


def weight_of(kind: str) -> PackedWeight:
    """A weight of a scheme, or with minimums and an order of its columns as formats have them."""
    torch.manual_seed(2)
    matrix = torch.randn(ROWS, COLUMNS)
    if kind in SCHEMES:
        return SCHEMES[kind].matrix(matrix, "w")
    codes = torch.randint(0, 16, (ROWS, COLUMNS))
    scales, minimums = torch.rand(ROWS, 2), torch.randn(ROWS, 2)
    order = torch.randperm(COLUMNS) if kind == "ordered" else None
    return pack(codes, 4, scales=scales, minimums=minimums, order=order)


@pytest.mark.parametrize("kind", [*SCHEMES, "minimums", "ordered"])
def test_a_product_reads_packed_weights_and_its_torch_form_is_aten(kind: str) -> None:
    weight = weight_of(kind)
    module = nn.Sequential(PackedLinear(weight, torch.randn(ROWS)), nn.ReLU()).eval()
    x = torch.randn(1, 5, COLUMNS)
    imported = import_module(module, [x])
    (product,) = (o for o in imported.plan.operators.values() if "unpack" in o.name)
    assert "matmul" in product.name
    nbytes = sum(each.nbytes for name, each in imported.weights.items() if "bias" not in name)
    assert nbytes == sum(each.nbytes for each in weight.tensors().values())

    (form,) = product.torch_forms
    assert form.subgraph is not None, form.reason
    assert all(node.operation.startswith("aten.") for node in form.subgraph.nodes)
    order = weight.order
    given = (x if order is None else x.index_select(-1, order)).reshape(5, COLUMNS).numpy()
    arrays = {each.shape: each for each in imported.weights.values()} | {given.shape: given}
    parts = weight.tensors()
    named = iter([parts[n].numpy() for n in ("codes", "scales", "zeros", "minimums") if n in parts])
    inputs = []
    for parameter in product.parameters[:-1]:
        shape = tuple(each for each in parameter.shape if isinstance(each, int))
        inputs.append(next(named) if shape[:1] == (ROWS,) and len(shape) > 1 else arrays[shape])
    output = np.empty((5, ROWS), np.float32)
    (exact,) = run_subgraph(form.subgraph, product.parameters, inputs, [output], {})
    matrix = weight.unpacked().double()
    bias = module.get_parameter("0.bias").double()
    want = torch.relu(x[0].double() @ matrix.T + bias).numpy()
    np.testing.assert_allclose(exact.reshape(want.shape), want, rtol=1e-5, atol=1e-5)
    compile_reference(imported.plan)[product.name](*inputs, output)
    np.testing.assert_allclose(output, want, rtol=2e-5, atol=2e-5)
