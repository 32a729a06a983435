"""A job's file is what it is when it is loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tapml.distributed.job_file import MODULE, load_job


def test_a_file_that_changed_within_its_second_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setitem(sys.modules, MODULE, sys)
    path = tmp_path / "job.py"
    for rate in (1, 2):
        path.write_text(f"def model(): return {rate}\n")
        os.utime(path, (1e9, 1e9))
        assert load_job(path, ("model",)).module.model() == rate
