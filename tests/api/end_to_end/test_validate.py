"""`tapml.validate`: what it takes, what it finds, and where it says the fault is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tapml as tml
from tapml.api.device import Device
from tapml.plan.graph_plan import GraphPlan
from tapml_targets.errors import InputError, NoSuchDeviceError, UnsupportedOperatorError
from tests.api import decoder_block
from tests.api.modules import WIDTH, NucleusSampler, Perceptron, line_of
from tests.conftest import RequireDevice

Array = np.ndarray[Any, Any]


def rows(count: int = 4, dtype: str = "float32") -> Array:
    drawn: Array = np.random.default_rng(2).standard_normal((count, WIDTH)).astype(dtype)
    return drawn


def test_a_torch_module_passes_operator_by_operator_and_whole(opencl: Device) -> None:
    module, given = Perceptron().eval(), rows()
    report = tml.validate(module, [given], reference=tml.cpu(), target=opencl)
    assert report.passed, str(report)
    assert all(each.status == "pass" and each.tests > 0 for each in report.operators)
    assert report.end_to_end.status == "pass"
    assert (report.reference, report.target) == ("cpu", "opencl")
    with torch.no_grad():
        expected = module(torch.from_numpy(given)).numpy()
    np.testing.assert_allclose(report.outputs[0], expected, rtol=1e-5, atol=1e-5)


def test_a_relax_module_passes(opencl: Device) -> None:
    relax_module = decoder_block.relax_module()
    arrays = decoder_block.inputs(relax_module)
    report = tml.validate(relax_module, arrays, entry="transformer_block", target=opencl)
    assert report.passed, str(report)
    names = [each.operator for each in report.operators]
    assert "softmax" in names
    assert "rms_norm" in names


def test_the_only_function_of_a_relax_module_is_validated(opencl: Device) -> None:
    relax_module = decoder_block.relax_module()
    arrays = decoder_block.inputs(relax_module)
    assert tml.validate(relax_module, arrays, target=opencl).passed


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NoSuchDeviceError, match="opencl:77"):
        tml.validate(Perceptron(), [rows()], target=tml.opencl(77))


def test_a_plan_with_its_weights_passes(opencl: Device) -> None:
    mod = tml.Module(Perceptron(), inputs=[rows()])
    assert isinstance(mod.plan, GraphPlan)
    report = tml.validate(mod.plan, [rows()], weights=mod.weights, target=opencl)
    assert report.passed, str(report)


def test_a_module_is_validated_as_it_is(opencl: Device) -> None:
    mod = tml.Module(Perceptron(), "perceptron", inputs=[rows()])
    report = tml.validate(mod, [rows()], target=opencl)
    assert report.passed, str(report)


def test_the_reference_may_be_a_device_as_well(opencl: Device) -> None:
    report = tml.validate(Perceptron(), [rows()], reference=opencl, target=tml.cpu())
    assert report.passed, str(report)
    assert (report.reference, report.target) == ("opencl", "cpu")


def test_tvms_wrong_running_sum_is_stopped_at_by_name_and_line(
    require_device: RequireDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared-memory update without a barrier: right with lockstep threads, wrong on PoCL."""
    # As TVM writes it for GPUs: tapml has a kernel of its own.
    monkeypatch.setattr("tapml.compiler.compiler.function_kind", lambda name: "gpu")
    pocl = require_device("opencl", vendor="Portable Computing Language")[0]
    report = tml.validate(NucleusSampler(), [rows()], target=tml.opencl(pocl.index))
    assert report.status == "fail"
    failed = [each for each in report.operators if each.status != "pass"]
    assert [each.operator for each in failed] == ["gpu_2d_continuous_cumsum"]
    line = line_of(NucleusSampler, "torch.cumsum")
    assert failed[0].sources == (f"tests/api/modules.py:{line}",)
    assert failed[0].worst_ratio > 1e4
    assert "gpu_2d_continuous_cumsum" in str(report)
    assert report.end_to_end.status == "fail"


def test_the_same_model_passes_where_the_running_sum_is_right(opencl: Device) -> None:
    for target in (tml.cpu(), opencl):
        report = tml.validate(NucleusSampler(), [rows()], target=target)
        assert report.passed, str(report)


def test_the_words_of_a_greedy_choice_are_compared_as_indices(opencl: Device) -> None:
    class Greedy(nn.Module):
        def forward(self, given: dict[str, torch.Tensor]) -> dict[str, Any]:
            return {"word": given["scores"].argmax(-1), "cache": None}

    # Arguments in a dictionary, and by name, are those of a list.
    tied = {"scores": np.zeros((3, WIDTH), np.float32)}
    for inputs in ([tied], {"given": tied}):
        report = tml.validate(Greedy(), inputs, target=opencl)
        assert report.passed, str(report)


def test_an_import_that_computes_something_else_fails_end_to_end(opencl: Device) -> None:
    """The operators pass, because the target does what the import says; torch says otherwise."""

    class Scaled(nn.Module):
        factor = 2.0

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden * self.factor

    module = Scaled()
    mod = tml.Module(module, inputs=[rows()])
    # An export holds the number that was there.
    module.factor = 3.0
    report = tml.validate(mod, [rows()], target=opencl)
    assert {each.status for each in report.operators} == {"pass"}
    assert (report.status, report.end_to_end.status) == ("fail", "fail")
    assert "the imported plan differs from the model's own run" in report.end_to_end.reason


def test_a_module_in_training_stays_in_training() -> None:
    module = Perceptron().train()
    tml.Module(module, inputs=[rows()])
    assert module.training


def test_a_plan_without_its_weights_is_refused_and_they_are_named() -> None:
    mod = tml.Module(Perceptron(), inputs=[rows()])
    with pytest.raises(InputError, match=r"first\.weight"):
        tml.validate(mod.plan, [rows()])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ([rows(), rows()], "takes 1 inputs (hidden), got 2"),
        ([], "takes 1 inputs (hidden), got 0"),
        ([rows(5)], "'hidden'"),
        ([rows()[0]], "'hidden'"),
        ([rows(dtype="float64")], "expected dtype float32, got float64"),
    ],
    ids=["too many", "none", "shape", "rank", "dtype"],
)
def test_inputs_that_do_not_fit_are_named(arrays: list[Array], words: str) -> None:
    mod = tml.Module(Perceptron(), inputs=[rows()])
    with pytest.raises(InputError) as caught:
        tml.validate(mod, arrays)
    assert words in str(caught.value)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected a Relax module.*got dict"):
        tml.validate({}, [rows()])


def test_an_operator_nobody_can_import_is_named_with_its_line() -> None:
    class Unusual(nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            values: torch.Tensor = torch.special.bessel_j0(hidden)
            return values

    line = line_of(Unusual, "torch.special.bessel_j0")
    with pytest.raises(UnsupportedOperatorError, match=rf"bessel_j0.*test_validate\.py:{line}"):
        tml.validate(Unusual(), [rows()])
