"""Whole-model verdicts that the journal holds are reused as they were made."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tapml.offload.hybrid_runs import Checked
from tapml.runs.result_key import ResultKey
from tapml.session.journal import open_journal
from tapml.verdicts.verdict import Status


@pytest.mark.parametrize("status", get_args(Status))
def test_a_journaled_verdict_keeps_its_status(tmp_path: Path, status: Status) -> None:
    key = ResultKey("k", {})
    with open_journal(tmp_path / "journal") as journal:
        journal.record(key, "model", "softmax", status, {"status": status, "reason": "off"})
        known = journal.result(key)
    assert known is not None
    checked = Checked.reused(known, key)
    assert (checked.status, checked.reason, checked.passed) == (status, "off", status == "pass")
    assert checked.data["reused"] is True
