"""Sorts and scans have a function for GPUs beside the CPU's."""

from __future__ import annotations

import pytest
import torch
import tvm

from tapml.importing.importer import import_module
from tapml.importing.symbolic import dtype_name, shape_of
from tapml.plan.graph_plan import Operator
from tests.importing.modules import Apply

ROWS = torch.rand(2, 6, 8)


def parameters(function: str) -> list[tuple[str, object, str]]:
    loaded = tvm.ir.load_json(function)
    return [(str(p.name), shape_of(p.ty.shape), dtype_name(p.ty.dtype)) for p in loaded.params]


def only(module: Apply, dynamic: object = None) -> Operator:
    plan = import_module(module, (ROWS,), dynamic=dynamic).plan
    return next(operator for operator in plan.operators.values() if operator.variants)


def test_a_running_sum_reaches_gpus_under_the_name_tvm_gives_it() -> None:
    operator = only(Apply(lambda t: torch.cumsum(t, -1)))
    assert operator.name == "gpu_2d_continuous_cumsum"
    assert operator.parameters[0].shape == (12, 8)
    assert "blockIdx" in operator.function_for("gpu")
    assert "blockIdx" not in operator.function_for("cpu")


@pytest.mark.parametrize(
    "module",
    [
        Apply(lambda t: torch.cumsum(t, -1)),
        Apply(lambda t: torch.cumsum(t, 1)),
        Apply(lambda t: torch.topk(t, 3)),
        Apply(lambda t: torch.argsort(t, -1)),
    ],
    ids=["last axis", "inner axis", "topk", "argsort"],
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_both_functions_take_the_same_parameters(module: Apply, dynamic: bool) -> None:
    extent = torch.export.Dim("n", min=2, max=64)
    operator = only(module, ({1: extent},) if dynamic else None)
    declared = [(p.name, p.shape, p.dtype) for p in operator.parameters]
    assert parameters(operator.function_for("cpu")) == declared
    assert parameters(operator.function_for("gpu")) == declared


def test_a_model_without_scans_has_no_variants() -> None:
    plan = import_module(torch.nn.Linear(8, 4), (ROWS,)).plan
    assert all(not operator.variants for operator in plan.operators.values())
