"""The model's time from its operators' times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tapml.session.model_times import model_times, multiple, slowest_line


def operator(name: str, **entries: tuple[int, float | None, float | None]) -> dict[str, Any]:
    """An operator with calls, target and reference milliseconds by entry."""
    data = {
        entry: {"calls": calls, "target_ms": target, "reference_ms": reference}
        for entry, (calls, target, reference) in entries.items()
    }
    known = any(each["target_ms"] is not None for each in data.values())
    times = {"target_ms": 1.0 if known else None, "clock": "device events", "entries": data}
    return {"name": name, "times": times}


MATMUL = operator("matmul", prefill=(4, 8.0, 4.0), decode=(4, 2.0, 1.0))
NORM = operator("norm", prefill=(2, 1.0, 1.0))
TAKE = operator("take", decode=(1, 8.0, 0.5))


def test_operators_sum_to_each_entry() -> None:
    times = model_times([MATMUL, NORM, TAKE])
    prefill, decode = times["entries"]["prefill"], times["entries"]["decode"]
    assert (prefill["target_ms"], prefill["reference_ms"], prefill["ratio"]) == (9.0, 5.0, 1.8)
    assert (decode["target_ms"], decode["reference_ms"]) == (10.0, 1.5)
    assert [(o["name"], o["calls"], o["share"]) for o in decode["operators"]] == [
        ("take", 1, 0.8), ("matmul", 4, 0.2),
    ]  # fmt: skip
    assert sum(each["share"] for each in prefill["operators"]) == pytest.approx(1.0)
    assert times["clock"] == "device events"
    json.dumps(times, allow_nan=False)


def test_an_operator_is_slow_where_its_ratio_is_far_above_the_entrys() -> None:
    """take runs 16 times as long as the reference; all of decode 2.5 / 1.5 plus that."""
    filler = operator("filler", decode=(8, 20.0, 20.0))
    times = model_times([MATMUL, filler, TAKE])
    (slow,) = times["slow"]
    assert (slow["name"], slow["entry"], slow["ratio"]) == ("take", "decode", 16.0)
    assert slow["share"] == pytest.approx(8 / 30, rel=1e-4)
    assert slow["ratio"] >= 3 * slow["model_ratio"]
    assert slowest_line(times) == "slowest against the reference: take 16 x (27 % of decode)"
    assert times["slow_rule"] == (
        "at least 3 times the ratio of the entry and 5% of its time on the target"
    )


@pytest.mark.parametrize(
    "tiny", [operator("tiny", decode=(1, 0.4, 0.001)), operator("even", decode=(1, 2.0, 1.0))]
)
def test_what_takes_no_time_or_is_as_slow_as_all_is_not_named(tiny: dict[str, Any]) -> None:
    times = model_times([operator("filler", decode=(8, 20.0, 10.0)), tiny])
    assert times["slow"] == []
    assert slowest_line(times) == ""


def test_what_was_not_timed_is_named_and_not_summed() -> None:
    unknown = operator("rare", prefill=(3, None, None))
    times = model_times([NORM, unknown, {"name": "kept"}, {"name": "old", "times": None}])
    assert times["untimed"] == ["rare", "kept", "old"]
    assert times["entries"]["prefill"]["untimed"] == ["rare"]
    assert times["entries"]["prefill"]["target_ms"] == 1.0


def test_a_model_without_times_has_none() -> None:
    times = model_times([])
    assert times["entries"] == {}
    assert times["clock"] == ""


def test_no_time_on_the_reference_gives_no_ratio() -> None:
    times = model_times([operator("view", decode=(1, 0.5, 0.0))])
    assert times["entries"]["decode"]["ratio"] is None
    assert times["entries"]["decode"]["operators"][0]["ratio"] is None


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.025, "0.025"), (1.96, "2"), (9.7, "9.7"), (9.96, "10"), (14.2, "14"), (1234.5, "1,234")],
)
def test_a_multiple_has_the_digits_that_matter(ratio: float, text: str) -> None:
    assert multiple(ratio) == text
