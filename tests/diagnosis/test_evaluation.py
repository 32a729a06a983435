"""Steps read out of a PrimFunc, cut out and evaluated give what TVM's own code gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tapml.compiler.twin import compile_twins
from tapml.diagnosis.cutting import Cut, opened_operator, prefix_operator, step_operator
from tapml.diagnosis.evaluation import Budget, Evaluation, raw_bits
from tapml.diagnosis.reading import ReadOperator, read_steps
from tapml.importing.importer import import_module
from tapml.plan.graph_plan import Operator
from tapml_targets.dtype import dtype
from tapml_targets.errors import LimitExceededError, UnsupportedOperatorError
from tapml_targets.expression import evaluate, symbols_of
from tapml_targets.float_formats import as_float64
from tests.importing.modules import examples
from tests.small_llama import SmallLlama

MODULES = ("convolution", "layer norm", "gelu tanh", "perceptron float16")
LLAMA = (
    "fused_rms_norm",
    "fused_rotary_greater_equal_reshape_where",
    "softmax",
    "fused_silu_multiply",
    "take_2",
)
SYMBOL = 5


@pytest.fixture(scope="module")
def readable(llama: SmallLlama) -> list[ReadOperator]:
    """Some operators of all sorts; each name once."""
    found = [read_steps(llama.plan.operators[name]) for name in LLAMA]
    for name in MODULES:
        module, inputs = examples()[name]
        plan = import_module(module, inputs).plan
        found += [read_steps(operator) for operator in plan.operators.values()]
    assert len({read.operator.name for read in found}) == len(found)
    return found


def symbols_for(operator: Operator) -> dict[str, int]:
    names = {s for p in operator.parameters for e in p.shape for s in symbols_of(e)}
    return dict.fromkeys(sorted(names | set(operator.symbols)), SYMBOL)


def raw_inputs(operator: Operator, symbols: dict[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(1)
    arrays = {}
    for parameter in operator.read:
        shape = [evaluate(extent, symbols) for extent in parameter.shape]
        values: np.ndarray[Any, Any]
        if dtype(parameter.dtype).is_float:
            values = np.abs(generator.standard_normal(shape)) + 0.1
        else:
            values = generator.integers(0, 2, shape)
        arrays[parameter.name] = raw_bits(values, parameter.dtype)
    return arrays


def as_known(operator: Operator, raw: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    return {
        p.name: as_float64(raw[p.name], p.dtype) if dtype(p.dtype).is_float else raw[p.name]
        for p in operator.read
    }


def outputs_of(operator: Operator, symbols: dict[str, int], wide: bool) -> list[Any]:
    arrays = []
    for parameter in operator.written:
        found = dtype(parameter.dtype)
        carrier = "float64" if wide and found.is_float else found.numpy_name
        shape = [evaluate(extent, symbols) for extent in parameter.shape]
        arrays.append(np.zeros(shape, carrier))
    return arrays


def whole(evaluation: Evaluation, tensor: str) -> np.ndarray[Any, Any]:
    shape = evaluation.shape(tensor)
    return evaluation.at(tensor, np.arange(int(np.prod(shape)))).reshape(shape)


def test_evaluated_in_float64_is_the_float64_twin(readable: list[ReadOperator]) -> None:
    twins = compile_twins([read.operator for read in readable])
    for read in readable:
        operator = read.operator
        symbols = symbols_for(operator)
        known = as_known(operator, raw_inputs(operator, symbols))
        expected = outputs_of(operator, symbols, wide=True)
        twins[operator.name](*known.values(), *expected, symbols=symbols)
        evaluation = Evaluation(read.steps, known, symbols)
        for parameter, values in zip(operator.written, expected, strict=True):
            found = whole(evaluation, parameter.name)
            np.testing.assert_allclose(found, values, rtol=1e-12, atol=1e-12)


def test_all_of_a_model_evaluated_in_its_own_precision_is_the_reference(llama: SmallLlama) -> None:
    for operator in llama.plan.operators.values():
        read = read_steps(operator)
        symbols = symbols_for(operator)
        raw = raw_inputs(operator, symbols)
        expected = outputs_of(operator, symbols, wide=False)
        llama.reference[operator.name](*raw.values(), *expected, symbols=symbols)
        known = as_known(operator, raw)
        evaluation = Evaluation(read.steps, known, symbols, own_precision=True)
        for parameter, values in zip(operator.written, expected, strict=True):
            found = whole(evaluation, parameter.name)
            np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-5)


def test_what_is_cut_out_computes_its_steps(readable: list[ReadOperator]) -> None:
    cuts: list[tuple[ReadOperator, Cut]] = []
    for read in readable:
        last = len(read.steps.steps) - 1
        if last:
            cuts += [
                (read, opened_operator(read)),
                (read, step_operator(read, last)),
                (read, prefix_operator(read, last - 1)),
            ]
    twins = compile_twins([cut.operator for _, cut in cuts])
    for read, cut in cuts:
        symbols = symbols_for(read.operator)
        known = as_known(read.operator, raw_inputs(read.operator, symbols))
        evaluation = Evaluation(read.steps, known, symbols)
        given = [whole(evaluation, tensor) for tensor in cut.reads]
        found = outputs_of(cut.operator, symbols, wide=True)
        twins[cut.operator.name](*given, *found, symbols=symbols)
        for tensor, values in zip(cut.writes, found, strict=True):
            expected = whole(evaluation, tensor)
            np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)


def test_steps_have_the_names_of_the_body_and_read_as_formulas(
    readable: list[ReadOperator], llama: SmallLlama
) -> None:
    by_name = {read.operator.name: read.steps for read in readable}
    norm = by_name["fused_rms_norm"].steps
    assert [step.name for step in norm] == [
        "multiply", "mean.fx_red", "mean.divide", "add", "rsqrt", "multiply_2", "multiply_3",
    ]  # fmt: skip
    assert norm[3].text == "add[i, j, k] = mean.divide[i, j, k] + 1e-06"
    product = read_steps(llama.plan.operators["matmul_transposed"]).steps.steps[0].text
    assert product.endswith("sum over r < 72 of input_0[i, r] * input_1[j, r]")
    assert [step.name for step in by_name["softmax"].steps] == [
        "softmax_maxelem", "softmax_exp", "softmax_expsum", "softmax_norm",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["sort", "topk", "argmax", "running sum"])
def test_what_is_no_sequence_of_steps_is_refused_with_the_reason(name: str) -> None:
    module, inputs = examples()[name]
    first = next(iter(import_module(module, inputs).plan.operators.values()))
    with pytest.raises(UnsupportedOperatorError, match="cannot be taken apart into steps: "):
        read_steps(first)


def test_work_is_bounded(llama: SmallLlama) -> None:
    read = read_steps(llama.plan.operators["matmul_transposed"])
    symbols = symbols_for(read.operator)
    known = as_known(read.operator, raw_inputs(read.operator, symbols))
    evaluation = Evaluation(read.steps, known, symbols, budget=Budget(100))
    assert evaluation.at("output_0", np.array([3])).shape == (1,)
    with pytest.raises(LimitExceededError, match="evaluations"):
        evaluation.at("output_0", np.array([4]))
