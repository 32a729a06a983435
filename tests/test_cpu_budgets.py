"""Every folder of tests has a budget of CPU seconds, and a run over it is reported."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.cpu_budgets import BUDGETS, folder_of, over_budget

TESTS = Path(__file__).parent


def test_every_folder_with_tests_has_a_budget() -> None:
    budgets = tomllib.loads(BUDGETS.read_text("utf-8"))["cpu_seconds"]
    files = [path.relative_to(TESTS.parent).as_posix() for path in TESTS.rglob("test_*.py")]
    counted = {folder_of(file) for file in files if "/exhaustive/" not in file}
    assert set(budgets) == counted


@pytest.mark.parametrize(
    ("nodeid", "folder"),
    [
        ("tests/test_imports.py::test_x", "."),
        ("tests/rpc/blobs/test_store.py::test_x[a/b]", "rpc"),
        ("tests/web/end_to_end/test_migration.py::test_x", "web"),
    ],
)
def test_a_test_belongs_to_the_folder_at_the_top(nodeid: str, folder: str) -> None:
    assert folder_of(nodeid) == folder


def test_what_is_over_its_budget_is_named_with_both_figures() -> None:
    spent = Counter({"rpc": 12, "web": 3, "new": 1})
    assert over_budget(spent, {"rpc": 10.0, "web": 3.0}) == [
        "new: 1 CPU seconds, and no budget",
        "rpc: 12 CPU seconds, budget 10",
    ]
