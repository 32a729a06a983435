"""The launches of the recorded calls are still the same."""

from __future__ import annotations

import base64
import json

import pytest

from tapml_targets.call_plan import TensorShape, plan_call
from tapml_targets.errors import InputError
from tapml_targets.library_format import unpack
from tests.targets.golden_vectors import FOLDER, plan_to_json, to_json, vectors

FILES = sorted(FOLDER.glob("*.json"))


def test_every_vector_has_its_file() -> None:
    assert [path.stem for path in FILES] == sorted(vectors())


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_recorded_call_launches_what_it_launched(name: str) -> None:
    recorded = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    library = unpack(base64.b64decode(recorded["library"]))
    tensors = [TensorShape(tuple(shape), dtype) for shape, dtype in recorded["tensors"]]
    if "error" in recorded:
        with pytest.raises(InputError):
            plan_call(library, recorded["call"], tensors, recorded["symbols"])
    else:
        plan = plan_call(library, recorded["call"], tensors, recorded["symbols"])
        assert plan_to_json(plan) == recorded["plan"]


@pytest.mark.parametrize("name", sorted(vectors()))
def test_the_recorded_library_is_the_one_in_the_source(name: str) -> None:
    recorded = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert to_json(vectors()[name]) == recorded


def test_the_recorded_values_of_expressions_are_the_arithmetic_ones() -> None:
    recorded = json.loads((FOLDER / "expressions.json").read_text(encoding="utf-8"))
    (launch,) = recorded["plan"]["launches"]
    n, m = 7, -7
    expected = [0, 14, -49, -1, -4, -4, 1, -1, -3, 2, m, n, 56, -4, 4]
    expected += [1, 0, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 11, 7 * 2**60 + 5, 3, 3, 0]
    assert [int(value) for _, value, _ in launch["arguments"]] == expected
