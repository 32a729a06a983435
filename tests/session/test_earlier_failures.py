"""A failure of an earlier run is reused with its cause, and made again where it has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tapml.runs.result_key import ResultKey
from tapml.session.earlier_failures import EarlierFailures
from tapml.session.journal import open_journal
from tapml.verdicts.verdict import Cause

KEY = ResultKey("k", {"kernel": "1"})


def found(tmp_path: Path, **event: Any) -> EarlierFailures:
    """What a session knows whose journal has one failure of a softmax."""
    (tmp_path / "repro" / "softmax").mkdir(parents=True)
    with open_journal(tmp_path / "journal") as journal:
        journal.append("failed", operator="softmax", key=KEY.hash, reason="it differs", **event)
        return EarlierFailures(journal, tmp_path / "repro")


def test_it_comes_with_cause_and_folder(tmp_path: Path) -> None:
    failure = found(tmp_path, cause="NaN").of("softmax", KEY)
    assert failure is not None
    assert (failure.cause, failure.reason) == (Cause.NAN, "it differs")
    assert failure.repro == tmp_path / "repro" / "softmax"


@pytest.mark.parametrize("event", [{}, {"cause": ""}, {"cause": "bad luck"}])
def test_one_without_a_known_cause_is_tried_again(tmp_path: Path, event: dict[str, str]) -> None:
    """As sessions have them that were made before verdicts had causes."""
    assert found(tmp_path, **event).of("softmax", KEY) is None
