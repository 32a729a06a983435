"""Processes that share a run begin with different files, and all of them have every test."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULE = """
import os
with open(os.environ["IMPORTED"] + os.environ["PYTEST_XDIST_WORKER"], "a") as file:
    file.write(__name__ + "\\n")

def test_it():
    pass
"""
SKIPPED = """
import pytest
pytest.skip("not here", allow_module_level=True)
"""


def test_each_process_begins_with_its_share(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setenv("IMPORTED", str(tmp_path / "of-"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # The second is set where this test's own run has several processes.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(test_a=MODULE, test_b=MODULE, test_c=MODULE, test_d=SKIPPED)
    plugins = ("-p", "tests.first_imports", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess("-n", "2", "--import-mode=importlib", *plugins)
    result.assert_outcomes(passed=3, skipped=1)
    imported = [(tmp_path / f"of-gw{number}").read_text().split() for number in range(2)]
    # The fourth file is the second one's, and says nothing.
    assert imported == [["test_a", "test_c", "test_b"], ["test_b", "test_a", "test_c"]]
    assert len(list(pytester.path.glob("__pycache__/test_?.*-pytest-*.pyc"))) == 4
