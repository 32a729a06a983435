"""The launches of the recorded calls are still the same."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tapml_targets import call_plan
from tapml_targets.call_plan import TensorShape, plan_call
from tapml_targets.dtype import _KNOWN
from tapml_targets.errors import InputError
from tapml_targets.expression import OPERATIONS, evaluate
from tapml_targets.library_format import VERSION, pack, unpack
from tests.targets import stranger
from tests.targets.golden_vectors import FOLDER, plan_to_json, to_json, vectors
from tests.targets.strategies import libraries

FILES = sorted(FOLDER.glob("*.json"))
TEXT = Path(__file__).parent.parent.parent / "rpc_server" / "LIBRARY.md"


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


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_an_evaluator_that_does_what_the_text_says_launches_the_same(name: str) -> None:
    recorded = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    library = stranger.read(base64.b64decode(recorded["library"]))

    def call() -> stranger.Call:
        return stranger.Call(library, recorded["call"], recorded["tensors"], recorded["symbols"])

    if "error" in recorded:
        with pytest.raises(stranger.RefusedError):
            call()
    else:
        made = call()
        assert {"workspaces": made.workspaces, "launches": made.launches} == recorded["plan"]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_both_evaluators_agree_on_any_library(data: st.DataObject) -> None:
    library = data.draw(libraries())
    programs = library.operators | library.entries
    assume(programs)
    name = data.draw(st.sampled_from(sorted(programs)))
    small = st.integers(0, 5)
    given_by_shapes = {
        extent: data.draw(small)
        for parameter in programs[name].parameters
        for extent in parameter.shape
        if isinstance(extent, str)
    }
    tensors = [
        TensorShape(tuple(evaluate(each, given_by_shapes) for each in p.shape), p.dtype)
        for p in programs[name].parameters
    ]
    symbols = {symbol: data.draw(small) for symbol in programs[name].symbols}
    theirs = stranger.read(pack(library))
    shapes = [[list(tensor.shape), tensor.dtype] for tensor in tensors]
    with pytest.MonkeyPatch.context() as patch:
        # Loops that never end would take the time of all the others.
        patch.setattr(call_plan, "MAX_STATEMENTS", 100)
        patch.setattr(stranger, "MOST_STATEMENTS", 100)
        try:
            plan = plan_to_json(plan_call(library, name, tensors, symbols))
        except InputError:
            with pytest.raises(stranger.RefusedError):
                stranger.Call(theirs, name, shapes, symbols)
            return
        made = stranger.Call(theirs, name, shapes, symbols)
        assert {"workspaces": made.workspaces, "launches": made.launches} == plan


def test_the_text_names_every_operation_dtype_and_version_there_is() -> None:
    text = TEXT.read_text("utf-8")
    assert all(f"`{operation}`" in text for operation in OPERATIONS)
    numbered = [("int8", "int64"), ("uint8", "uint64")]
    assert all(f"`{first}` to `{last}`" in text for first, last in numbered)
    others = [name for name in _KNOWN if not name.lstrip("u").startswith("int") or name[-1] == "4"]
    assert all(f"`{name}`" in text for name in others)
    assert text.startswith("# A Library") and text.split("\n")[0].endswith(f"version {VERSION}")
