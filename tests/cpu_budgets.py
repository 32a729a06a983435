"""CPU seconds that each folder of tests may take; a run that takes more fails.

Seconds of the processor, of the tests' process and of the children it waited for: they say the same
on a busy machine, which wall time does not. `budgets.toml` holds them.
"""

from __future__ import annotations

import resource
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BUDGETS = Path(__file__).with_name("budgets.toml")
_SPENT = pytest.StashKey[Counter[str]]()
_REPORTED = "cpu_seconds"


def folder_of(nodeid: str) -> str:
    """``tests/rpc/blobs/test_store.py::test_x`` belongs to ``rpc``; a file at the top to ``.``."""
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 else "."


def over_budget(spent: Counter[str], budgets: dict[str, float]) -> list[str]:
    """A line for every folder that took more than its budget, or that has none."""
    return [
        f"{folder}: {seconds:.0f} CPU seconds, "
        + (f"budget {budgets[folder]:.0f}" if folder in budgets else "and no budget")
        for folder, seconds in sorted(spent.items())
        if seconds > budgets.get(folder, 0.0)
    ]


def _cpu_seconds() -> float:
    own, children = (resource.getrusage(who) for who in _WHOSE)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


_WHOSE = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count a test with the fixtures made for it; the exhaustive ones have no budget."""
    if "/exhaustive/" in item.nodeid:
        return (yield)
    started = _cpu_seconds()
    try:
        return (yield)
    finally:
        spent = item.config.stash.setdefault(_SPENT, Counter())
        spent[folder_of(item.nodeid)] += _cpu_seconds() - started  # type: ignore[assignment]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a process of pytest-xdist has counted."""
    spent = node.config.stash.setdefault(_SPENT, Counter())
    spent.update(getattr(node, "workeroutput", {}).get(_REPORTED, {}))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the counts on, or compare them with the budgets."""
    spent = session.config.stash.setdefault(_SPENT, Counter())
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_REPORTED] = dict(spent)
    elif over_budget(spent, _budgets()) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what each folder took, and what is over its budget."""
    spent = terminalreporter.config.stash.get(_SPENT, Counter())
    if not spent:
        return
    shown = ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in spent.most_common())
    terminalreporter.write_line(f"CPU seconds: {shown}")
    for line in over_budget(spent, _budgets()):
        terminalreporter.write_line(f"over the budget in {BUDGETS.name}: {line}", red=True)


def _budgets() -> dict[str, float]:
    found: dict[str, float] = tomllib.loads(BUDGETS.read_text("utf-8"))["cpu_seconds"]
    return found
