"""Diagnoses survive a JSON file whole, and nothing in such a file is trusted."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.failures.diagnosis import Attribution, Diagnosis, InnerStep, NonFiniteOrigin
from tapml_targets.errors import InputError

TEXT = st.text(max_size=20)
NUMBER = st.floats(allow_nan=False)
INDEX = st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple)
STEPS = st.builds(
    InnerStep,
    name=TEXT,
    position=st.integers(1, 99),
    count=st.integers(1, 99),
    operation=TEXT,
    origins=st.lists(TEXT, max_size=3).map(tuple),
    found=st.sampled_from(["refined kernel", "prefix kernel", "hypothesis", "only step"]),
    ratio=NUMBER,
    limit=NUMBER,
    mistake=TEXT,
    sentence=TEXT,
)
ORIGINS = st.builds(
    NonFiniteOrigin,
    output=TEXT,
    index=INDEX,
    value=NUMBER,
    parameter=TEXT,
    parameter_index=INDEX,
    parameter_value=NUMBER,
    step=TEXT,
    hazard=TEXT,
    argument=NUMBER,
    sentence=TEXT,
)
ATTRIBUTIONS = st.builds(
    Attribution,
    cause=st.sampled_from(["schedule", "fusion", "math", "driver", "unknown"]),
    evidence=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    sentence=TEXT,
)
DIAGNOSES = st.builds(
    Diagnosis,
    operator=TEXT,
    step=st.none() | STEPS,
    where=st.lists(TEXT, max_size=3).map(tuple),
    nonfinite=st.none() | ORIGINS,
    attribution=st.none() | ATTRIBUTIONS,
    notes=st.lists(TEXT, max_size=3).map(tuple),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FULL = Diagnosis(
    "fused_gelu",
    InnerStep(
        "tanh", 5, 7, "T.tanh(x)", ("aten.gelu at m.py:3",), "refined kernel", math.inf, 32.0, "",
        "step 5 of 7 (tanh) is wrong",
    ),
    ("output_0: the last 3",),
    NonFiniteOrigin(
        "output_0", (0, 3), math.nan, "input_0", (0, 3), 46.0, "tanh", "tanh overflow", 92.0,
        "from input_0[0, 3] = 46",
    ),
    Attribution("math", (("precise math", "pass"),), "the driver's tanh"),
    ("2 steps were not tried",),
)  # fmt: skip


@given(DIAGNOSES)
def test_a_diagnosis_survives_strict_json(diagnosis: Diagnosis) -> None:
    text = json.dumps(diagnosis.to_json(), allow_nan=False)
    assert Diagnosis.from_json(json.loads(text)) == diagnosis


def test_nan_travels_as_text() -> None:
    again = Diagnosis.from_json(json.loads(json.dumps(FULL.to_json(), allow_nan=False)))
    assert again.nonfinite is not None
    assert math.isnan(again.nonfinite.value)
    assert again.lines() == FULL.lines()


def test_lines_say_step_origin_cause_and_place_in_this_order() -> None:
    assert FULL.lines() == [
        "step: step 5 of 7 (tanh) is wrong",
        "  from aten.gelu at m.py:3",
        "NaN: from input_0[0, 3] = 46",
        "cause: math: the driver's tanh",
        "  precise math: pass",
        "where: output_0: the last 3",
        "note: 2 steps were not tried",
    ]
    assert Diagnosis("add").lines() == []


@given(st.sampled_from(["step", "nonfinite", "attribution", ""]), st.data())
def test_damage_is_an_input_error_or_harmless(part: str, data: st.DataObject) -> None:
    document: dict[str, Any] = json.loads(json.dumps(FULL.to_json()))
    place = document[part] if part else document
    name = data.draw(st.sampled_from(sorted(place)))
    if data.draw(st.booleans()):
        place[name] = data.draw(ANYTHING)
    else:
        del place[name]
    try:
        again = Diagnosis.from_json(document)
    except InputError as error:
        assert len(str(error)) < 300
    else:
        json.dumps(again.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    "damage",
    [
        {"where": ["x"] * 1000},
        {"operator": "x" * 100_000},
        {"notes": "text"},
        {"step": {**FULL.to_json()["step"], "ratio": "1e5"}},
        {"step": {**FULL.to_json()["step"], "position": 0}},
        {"step": {**FULL.to_json()["step"], "found": "guessed"}},
        {"nonfinite": {**FULL.to_json()["nonfinite"], "index": [-1]}},
        {"nonfinite": {**FULL.to_json()["nonfinite"], "value": 10**400}},
        {"attribution": {**FULL.to_json()["attribution"], "evidence": [["one"]]}},
    ],
)
def test_what_tapml_never_writes_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="should be"):
        Diagnosis.from_json({**FULL.to_json(), **damage})
