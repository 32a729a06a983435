"""Encoders and plain modules as workloads: cases, their plain form, what counts of an output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tapml.execute.arrays import Array
from tapml.models.fixed_input import FixedInput
from tapml.models.stored import (
    ModuleTensor,
    StoredEncoder,
    StoredModule,
    SymbolRange,
    read_stored,
)
from tapml.workloads import workload_of
from tapml.workloads.encoder import Batch, EncoderWorkload
from tapml.workloads.module import Input, ModuleWorkload
from tapml_targets.errors import InputError

ENCODER = StoredEncoder("enc", "float32", 3, 6, 50, 0, "vectors", "ab")
MODULE = StoredModule(
    "net",
    "float32",
    (ModuleTensor("x", "float32", (2, 3)),),
    (ModuleTensor("result", "float32"),),
    "classes",
    ("cat", "dog"),
    "ab",
)
# Two inputs of one free extent, an output of numbers and one of whole numbers.
FREE = StoredModule(
    "free",
    "float32",
    (ModuleTensor("x", "float32", ("n", 2)), ModuleTensor("at", "int32", ("n",))),
    (ModuleTensor("y", "float32"), ModuleTensor("count", "int64")),
    "values",
    (),
    "ab",
    (SymbolRange("n", 2, 8),),
)
# What a file's further inputs are in it.
FIXED = replace(
    MODULE,
    fixed=(FixedInput.of("rate", np.array(16000)), FixedInput.of("wide", np.array([True]))),
)


class Doubling:
    """A runner whose first output is a function of its inputs."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def reset(self) -> None:
        """Nothing is kept."""

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Vectors ``[token, token + 1]``; or the first two numbers of each row."""
        if entry == "encode":
            ids = inputs["token_ids"].astype(np.float32)
            return {"result": np.stack([ids, ids + 1], axis=2) * self.scale}
        doubled = {"result": inputs["x"][:, :2] * self.scale}
        return doubled | ({"count": np.array([len(inputs["at"])])} if "at" in inputs else {})


@pytest.mark.parametrize("stored", [ENCODER, MODULE, FREE, FIXED])
def test_a_stored_model_survives_json_and_finds_its_workload(
    stored: StoredEncoder | StoredModule,
) -> None:
    assert read_stored(json.loads(json.dumps(stored.to_json()))) == stored
    assert type(workload_of(stored)).__name__.lower().startswith(stored.workload)


@pytest.mark.parametrize("data", [None, {}, {"workload": "poet"}, {"workload": ["encoder"]}])
def test_other_data_is_no_stored_model(data: object) -> None:
    with pytest.raises(InputError, match="a stored model"):
        read_stored(data)


def test_a_batch_is_padded_and_masked() -> None:
    inputs = ENCODER.prepare([(7, 8), (9,)])
    assert inputs["token_ids"].tolist() == [[7, 8, 0, 0, 0, 0], [9, 0, 0, 0, 0, 0], [0] * 6]
    seen = inputs["attention_mask"][:, 0, 0] == 0
    assert seen.sum(axis=1).tolist() == [2, 1, 1]


@pytest.mark.parametrize("sentences", [[], [()], [(1,)] * 4, [(1,) * 7], [(50,)], [(-1,)]])
def test_sentences_that_do_not_fit_are_refused(sentences: list[tuple[int, ...]]) -> None:
    with pytest.raises(InputError, match=r"enc: expected .* to"):
        ENCODER.prepare(sentences)


def test_only_tokens_count_and_not_their_padding() -> None:
    workload = EncoderWorkload(ENCODER)
    rows = workload.outputs(Doubling(), Batch(((7, 9), (4,))))
    assert rows.tolist() == [[8, 9], [4, 5], [7, 8], [9, 10], [4, 5]]


@pytest.mark.parametrize(
    ("workload", "case"),
    [
        (EncoderWorkload(ENCODER), Batch(((7, 9), (4,)), ("a b", "c"))),
        (ModuleWorkload(MODULE), Input.of([np.arange(6.0).reshape(2, 3)], "six numbers")),
        (ModuleWorkload(FREE), Input.of([np.ones((4, 2)), np.arange(4)])),
    ],
)
def test_a_case_survives_json_and_is_compared(
    workload: EncoderWorkload | ModuleWorkload, case: Batch | Input
) -> None:
    packed = json.loads(json.dumps(workload.pack_case(case)))  # type: ignore[arg-type]
    assert workload.unpack_case(packed) == case
    trace = workload.trace(Doubling(), case, 5, 1e-7)  # type: ignore[arg-type]
    workload.check_trace(trace)
    assert workload.compare(Doubling(), trace).status == "pass"
    assert workload.compare(Doubling(1.01), trace).status == "fail"
    assert workload.result(Doubling(), trace, str).equal
    assert not workload.result(Doubling(1.01), trace, str).equal


@pytest.mark.parametrize("data", [{}, {"sentences": []}, {"sentences": [[99]]}, {"shape": [2]}])
def test_a_stored_case_of_another_shape_is_refused(data: dict[str, object]) -> None:
    for workload in (EncoderWorkload(ENCODER), ModuleWorkload(MODULE)):
        with pytest.raises(InputError):
            workload.unpack_case(data)


def test_classes_have_names() -> None:
    workload = ModuleWorkload(MODULE)
    case = Input.of([np.array([[1.0, 2.0, 0.0], [5.0, 4.0, 9.0]])])
    assert workload.describe(case, workload.outputs(Doubling(), case)) == "dog cat"


def test_what_another_kind_takes_is_refused() -> None:
    with pytest.raises(InputError, match="takes sentences"):
        EncoderWorkload(ENCODER).from_arguments((), (), np.zeros(3), None)
    with pytest.raises(InputError, match=r"takes x float32 \[2, 3\]"):
        ModuleWorkload(MODULE).from_arguments(("text",), (), None, None)
    with pytest.raises(
        InputError, match=r"float64 \[3\] for net: expected numbers x float32 \[2, 3\]"
    ):
        ModuleWorkload(MODULE).from_arguments((), (), np.zeros(3), None)


def test_a_fixed_input_may_be_given_with_the_numbers_that_it_has() -> None:
    workload, x = ModuleWorkload(FIXED), np.ones((2, 3))
    for more in ({}, {"rate": np.array(16000)}, {"rate": np.array(16000), "wide": np.array([1])}):
        case = workload.from_arguments((), (), {"x": x, **more}, None)
        assert list(workload.inputs(case)) == ["x"]
    for rate in (np.array(8000), np.array([16000]), np.zeros(10**6)):
        with pytest.raises(InputError, match=r"input rate of net is .*: expected 16000 \[\]") as at:
            workload.from_arguments((), (), {"x": x, "rate": rate}, None)
        assert len(str(at.value)) < 300


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([np.ones((4, 2))], "1 inputs for free: expected 2"),
        ({"x": np.ones((4, 2)), "z": np.ones(4)}, "inputs x, z for free"),
        ([np.ones((4, 2)), np.arange(5)], r"int64 \[5\] .* whole numbers at int32 \[n\]"),
        ([np.ones((4, 2)), np.ones(4)], "expected whole numbers"),
        ([np.ones((9, 2)), np.arange(9)], "n = 9 for free: expected 2 to 8"),
        ([np.ones((2, 2)), np.array([0, 1 << 40])], "no int32 holds"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(given: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModuleWorkload(FREE).inputs(ModuleWorkload(FREE).as_case(given))


def test_a_wrong_whole_number_fails_however_small_the_error() -> None:
    workload = ModuleWorkload(FREE)
    case = Input.of([np.ones((4, 2)), np.arange(4)])
    trace = workload.trace(Doubling(), case, 1, 0.0)
    rows = trace.outputs.copy()
    rows[1, 0] += 1
    verdict = workload.verdict(trace, rows)
    assert (verdict.status, verdict.severity) == ("fail", np.inf)
    assert "output count" in verdict.reason
