"""A plan that differs from PyTorch is stopped at the operator that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tapml.compiler.reference import compile_reference
from tapml.importing.importer import import_module
from tapml.models.inputs import MASKED
from tapml.plan.rooting_report import RUN_TOLERANCE, Rooted, RootingReport, compare
from tapml.rooting.conditioning import moved_by_errors
from tapml.rooting.interpreter import run_entry
from tapml.rooting.rooting import root, root_runs
from tapml_targets.errors import InputError, MismatchError
from tests.importing.modules import root_module
from tests.small_llama import SmallLlama


class WithFault:
    """The reference, with one operator's output changed."""

    def __init__(self, reference: Any, operator: str, fault: Callable[[Any], None]) -> None:
        self._reference = reference
        self._operator = operator
        self._fault = fault

    def __getitem__(self, operator: str) -> Callable[..., None]:
        function: Callable[..., None] = self._reference[operator]
        if operator != self._operator:
            return function

        def faulty(*tensors: Any, symbols: Any = None) -> None:
            function(*tensors, symbols=symbols)
            self._fault(tensors[-1])

        return faulty


def scale(output: Any) -> None:
    output *= 1.001


def shift(output: Any) -> None:
    output[...] = np.roll(output, 1, axis=-1)


def poison(output: Any) -> None:
    output.reshape(-1)[-1] = np.nan


def test_every_call_site_of_a_language_model_is_compared(llama: SmallLlama) -> None:
    report = root(llama.model, llama.imported, reference=llama.reference)
    entries = llama.imported.plan.entries.values()
    assert report.sites == sum(len(entry.calls) for entry in entries)
    assert report.not_comparable == ()
    assert set(report.operators) == set(llama.imported.plan.operators)
    assert report.worst is not None
    assert report.worst.ratio < 0.5
    outputs = [each for each in report.compared if each.kind == "output"]
    assert len(outputs) == sum(len(e.outputs) + len(e.state) for e in entries)


@pytest.mark.parametrize("fault", [scale, shift, poison])
@pytest.mark.parametrize("operator", ["softmax", "matmul_transposed_3", "fused_transpose_rotary"])
def test_a_wrong_operator_is_the_only_one_named(
    llama: SmallLlama, operator: str, fault: Callable[[Any], None]
) -> None:
    faulty = WithFault(llama.reference, operator, fault)
    with pytest.raises(MismatchError) as caught:
        root(llama.model, llama.imported, reference=faulty)
    named = {line.split()[0] for line in str(caught.value).splitlines() if " at " in line}
    assert named == {operator}
    assert "transformers/models/llama/modeling_llama.py:" in str(caught.value)


@pytest.mark.parametrize("fault", [scale, shift])
def test_wrong_scores_are_named_beside_masked_ones(
    llama: SmallLlama, fault: Callable[[Any], None]
) -> None:
    def unmasked(output: Any) -> None:
        seen = output > MASKED["float32"] / 2
        changed = output[seen]
        fault(changed)
        output[seen] = changed

    faulty = WithFault(llama.reference, "fused_matmul_multiply_add", unmasked)
    with pytest.raises(MismatchError, match="fused_matmul_multiply_add at "):
        root(llama.model, llama.imported, reference=faulty)


def test_a_wrong_cache_row_is_found(llama: SmallLlama) -> None:
    operator = "fused_greater_equal_reshape_where"
    with pytest.raises(MismatchError, match=operator):
        root(llama.model, llama.imported, reference=WithFault(llama.reference, operator, shift))


@pytest.mark.parametrize(("ours", "torchs"), [(3, 2), (3, 0), (0, 3)])
def test_an_output_of_another_size_is_wrong_in_every_element(ours: int, torchs: int) -> None:
    found = compare("output", "f", "y", None, np.ones(ours), np.ones(torchs), "float32")
    assert found.ratio == float("inf")


def test_a_report_survives_storage(llama: SmallLlama) -> None:
    report = root(llama.model, llama.imported, reference=llama.reference, prompt=[3, 1, 4, 1])
    assert RootingReport.unpack(report.pack()) == report
    assert report.as_json()["compared_sites"] == report.sites


def test_a_plan_without_its_torch_program_cannot_be_rooted(llama: SmallLlama) -> None:
    with pytest.raises(InputError, match="no torch program"):
        root_runs(replace(llama.imported, exported={}), [])


class HalfInside(torch.nn.Module):
    """A linear layer with a bias and what it is added to, in half precision, for a float32 norm."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        shape = ((24, 40), (24,))
        self.weight, self.bias = (
            torch.nn.Parameter(torch.randn(each, generator=generator).half()) for each in shape
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        added = torch.nn.functional.linear(x, self.weight, self.bias) + residual
        return added.to(torch.float32).square()


def test_what_is_a_half_inside_an_operator_is_as_exact_as_a_half() -> None:
    """PyTorch rounds a product with its bias once, the plan twice: a float32 would not differ."""
    generator = np.random.default_rng(3)
    inputs = [generator.standard_normal((7, n)).astype(np.float16) for n in (40, 24)]
    example = tuple(torch.from_numpy(each) for each in inputs)
    report = root_module(import_module(HalfInside(), example), inputs)
    assert report.worst is not None
    assert 0.01 < report.worst.ratio < 1


class _Cancelled(torch.nn.Module):
    """Sums whose large equal part cancels, so that their rounding is most of the result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums = x.sum(dim=-1)
        return (sums - sums.mean()) * 100


def test_an_output_that_amplifies_the_rounding_inside_is_allowed_what_that_explains() -> None:
    x = np.random.default_rng(3).uniform(1.0, 1.01, (8, 1000)).astype(np.float32)
    imported = import_module(_Cancelled(), (torch.from_numpy(x),))
    ((name, entry),) = imported.plan.entries.items()
    first = next(iter(entry.calls)).operator

    def rounded(output: Any) -> None:
        output += np.float32(4e-3) * (-1) ** np.arange(output.size).reshape(output.shape)

    reference = compile_reference(imported.plan)
    inputs = [(name, dict(zip(entry.inputs, [x], strict=True)))]
    report = root_runs(imported, inputs, reference=WithFault(reference, first, rounded))
    (output,) = (each for each in report.compared if each.kind == "output")
    # By itself far beyond what an output may be off by.
    assert output.error > 5 * RUN_TOLERANCE["float32"] * output.scale
    assert 0.1 < output.ratio < 1
    assert output.explained_up_to(output.error / 3).ratio == output.ratio
    beyond = replace(output, ratio=50.0)
    assert beyond.explained_up_to(0.0).ratio == 50
    assert beyond.explained_up_to(output.error / 3).ratio == pytest.approx(3)


class _BesideHuge(torch.nn.Module):
    """Four sums, of which the first is huge and no part of the result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.sum(dim=1) * torch.tensor([0.0, 1.0, 1.0, 1.0])).sum(dim=-1)


def test_a_wrong_number_beside_a_huge_one_is_not_explained_by_its_own_error() -> None:
    x = np.random.default_rng(3).uniform(1.0, 1.01, (8, 100, 4)).astype(np.float32)
    x[..., 0] = 1000
    imported = import_module(_BesideHuge(), (torch.from_numpy(x),))
    ((name, entry),) = imported.plan.entries.items()
    first = next(iter(entry.calls)).operator

    def wrong(output: Any) -> None:
        output[:, 1] += 1

    reference = compile_reference(imported.plan)
    inputs = [(name, dict(zip(entry.inputs, [x], strict=True)))]
    assert root_runs(imported, inputs, reference=reference).worst is not None
    # Of the huge number it is too little to be seen in the operator's own comparison.
    with pytest.raises(MismatchError, match="in 1 of 3 comparisons"):
        root_runs(imported, inputs, reference=WithFault(reference, first, wrong))


class _Attention(torch.nn.Module):
    """Of three keys, the last one is masked."""

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        scores = queries @ keys.mT + torch.tensor([0.0, 0.0, MASKED["float32"]])
        return scores.softmax(dim=-1) @ keys


def test_the_rounding_of_masked_scores_moves_no_other() -> None:
    random = np.random.default_rng(5)
    given = [random.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (3, 8))]
    imported = import_module(_Attention(), [torch.from_numpy(each) for each in given])
    ((name, entry),) = imported.plan.entries.items()
    reference = compile_reference(imported.plan)
    tensors = {**imported.weights, **dict(zip(entry.inputs, given, strict=True))}
    values = run_entry(entry, reference, tensors)
    (masked,) = (
        each
        for call in entry.calls
        if (values[each := call.arguments[-1]] <= MASKED["float32"] / 2).any()
    )
    rounding = Rooted("operator", name, masked, "", "", "", error=512, scale=1e9, ratio=0.03)
    (moved,) = moved_by_errors(entry, reference, tensors, [rounding], values).values()
    assert 0 < moved < 1e-4
