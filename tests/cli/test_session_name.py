"""A mistyped session name begins no session; a name that was meant to be new does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.cli.session_name import check_session_name
from tapml.runs.journal import JOURNAL
from tapml_targets.errors import InputError
from tests.offload.commands import run_here


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with two sessions in it."""
    for name in ("my-session", "run-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / JOURNAL).touch()
    return tmp_path


@pytest.mark.parametrize("typo", ["my-sesion", "mysession", "my-Session"])
def test_the_session_that_was_meant_is_named(place: Path, typo: str) -> None:
    meant = place / "my-session"
    with pytest.raises(InputError, match=f"did you mean {meant}") as refused:
        check_session_name(place / typo, "pydoc-llama")
    assert "--model pydoc-llama" in str(refused.value)


@pytest.mark.parametrize(
    "name", ["my-session", "my-session2", "run-2", "other", "nowhere/my-session"]
)
def test_one_that_is_there_a_series_and_another_name_are_taken(place: Path, name: str) -> None:
    check_session_name(place / name, "pydoc-llama")


def test_nothing_is_made_where_the_name_is_refused(place: Path) -> None:
    ended = run_here("offload", "--session", place / "my-sesion", cache=place)
    assert ended.exit_code == 2
    assert "did you mean" in ended.errors
    assert not (place / "my-sesion").exists()
