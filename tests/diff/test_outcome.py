"""Outcomes are read strictly: what is not as it was written is an error that names the file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapml.diff.outcome import SESSION_REPORT, Outcome, read_outcome
from tapml_targets.errors import InputError
from tests.diff.replays import replay, write

RIGHT = replay(add={"t": ("pass", 1.5), "u": ("fail", float("inf"))})


@pytest.mark.parametrize("version", [1, 2])
def test_a_replay_is_read(tmp_path: Path, version: int) -> None:
    data = RIGHT | {"format": f"tapml-replay/{version}"}
    outcome = read_outcome(write(tmp_path / "r.json", data))
    assert (outcome.kind, outcome.status) == ("replay", "fail")
    assert outcome.facts["device"] == "a device"
    add = outcome.operators["add"]
    assert (add.status, add.ratio, add.count) == ("fail", float("inf"), 2)
    assert add.tests["t"].ratio == 1.5
    assert add.kernel_seconds == 0.002


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '{"format": "tapml-replay/99"}', '{"format": []}', "[" * 100_000],
)
def test_anything_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InputError, match=r"r\.json.*expected the output of `tapml replay --json`"):
        read_outcome(tmp_path / "r.json")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*nowhere"):
        read_outcome(tmp_path / "nowhere")
    with pytest.raises(InputError, match=f"folder without {SESSION_REPORT}"):
        read_outcome(tmp_path)


def test_not_a_number_is_no_json(tmp_path: Path) -> None:
    text = json.dumps(RIGHT).replace('"inf"', "Infinity")
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InputError, match="Infinity is not JSON"):
        read_outcome(tmp_path / "r.json")


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in plain data."""
    items: list[tuple[Any, Any]] = []
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    return [place for key, value in items for place in ((*path, key), *places(value, (*path, key)))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    place=st.sampled_from([place for place in places(RIGHT) if place[0] != "policy"]),
    value=st.one_of(st.none(), st.booleans(), st.lists(st.none(), max_size=1), st.just({"a": {}})),
)
def test_a_field_of_another_type_never_passes_for_a_right_one(
    tmp_path: Path, place: tuple[Any, ...], value: Any
) -> None:
    damaged = copy.deepcopy(RIGHT)
    *path, last = place
    holder: Any = damaged
    for key in path:
        holder = holder[key]
    holder[last] = value
    file = write(tmp_path / "r.json", damaged)
    nothing_known = (last in ("tests", "operators") and value == []) or (
        last == "kernel_seconds" and value is None
    )
    if nothing_known:
        assert isinstance(read_outcome(file), Outcome)
    else:
        with pytest.raises(InputError):
            read_outcome(file)
