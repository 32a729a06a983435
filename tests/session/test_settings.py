"""Settings are read back as they were written, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.session.settings import Settings
from tapml_targets.errors import InputError

TEXTS = st.lists(st.text(), max_size=3).map(tuple)
SETTINGS = st.builds(
    Settings,
    model=st.text(),
    target=st.text(),
    device=st.text(),
    dtype=st.sampled_from(["auto", "float32", "float16"]),
    context_length=st.integers(0, 2**31),
    prompts=TEXTS,
    tokens=TEXTS,
    prompt_count=st.integers(1, 100),
    new_tokens=st.integers(1, 1000),
    budget_bytes=st.integers(1, 2**60),
)


class MoreSettings(Settings, frozen=True):
    """With fields of the kinds that no setting has today."""

    tolerance: float = 0.5
    note: str | None = None


def test_fields_of_any_type_are_read_back_and_checked() -> None:
    settings = MoreSettings("m", "opencl", tolerance=0.25, note="why")
    assert MoreSettings.from_json(settings.to_json()) == settings
    data = json.loads(settings.to_json())
    with pytest.raises(InputError, match="tolerance"):
        MoreSettings.from_json(json.dumps(data | {"tolerance": "small"}))


@given(SETTINGS)
def test_settings_round_trip_through_json(settings: Settings) -> None:
    assert Settings.from_json(settings.to_json()) == settings


def test_what_a_person_leaves_out_has_a_default() -> None:
    settings = Settings("pydoc-llama", "opencl")
    assert (settings.dtype, settings.prompt_count, settings.device) == ("auto", 2, "")


@pytest.mark.parametrize("text", ["", "null", "[]", "7", "{}", '{"model": 1}', "{", '"x"'])
def test_what_is_no_settings_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Settings.from_json(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 5),
        ("model", None),
        ("new_tokens", "6"),
        ("new_tokens", True),
        ("new_tokens", 1.5),
        ("prompts", "text"),
        ("prompts", [1]),
        ("tokens", {"a": 1}),
        ("surprise", 1),
    ],
)
def test_a_value_of_the_wrong_type_is_named(name: str, value: Any) -> None:
    data = json.loads(Settings("m", "opencl").to_json())
    with pytest.raises(InputError, match=name):
        Settings.from_json(json.dumps({**data, name: value}))
