"""Traces of one script, recorded once for all tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tapml.invariants.inference import infer, run_of
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.launch import Collected, collect
from tapml.invariants.trace import Trace

SCRIPT = Path(__file__).with_name("train.py")


@pytest.fixture(scope="session")
def losses() -> dict[Path, str]:
    """What recorded scripts printed, by the folder of the trace."""
    return {}


@pytest.fixture(scope="session")
def collect_script(
    tmp_path_factory: pytest.TempPathFactory, losses: dict[Path, str]
) -> Callable[..., Collected]:
    """Record the script with some arguments."""

    def run(*arguments: str) -> Collected:
        folder, printed = (tmp_path_factory.mktemp(name) for name in ("trace", "printed"))
        told = printed / "losses.txt"
        # The output of a recorded command goes where this process's goes.
        command = 'exec "$@" > "$0"'
        shell = ["bash", "-c", command, str(told), sys.executable, str(SCRIPT), *arguments]
        collected = collect(shell, folder)
        losses[folder] = told.read_text()
        return collected

    return run


def _trace(collected: Collected) -> Trace:
    assert collected.exit_code == 0
    assert collected.trace is not None
    return collected.trace


@pytest.fixture(scope="session")
def clean(collect_script: Callable[..., Collected]) -> Trace:
    """A run that is right."""
    return _trace(collect_script("0"))


@pytest.fixture(scope="session")
def other_seed(collect_script: Callable[..., Collected]) -> Trace:
    """Another run that is right."""
    return _trace(collect_script("1"))


@pytest.fixture(scope="session")
def replaced(collect_script: Callable[..., Collected]) -> Trace:
    """A run whose optimizer was made before its model was replaced."""
    return _trace(collect_script("1", "replaced"))


@pytest.fixture(scope="session")
def learned(clean: Trace) -> InvariantSet:
    """What the clean run shows."""
    return infer([run_of(clean)])
