"""An address at which nothing listens ends a command by itself, with one line."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tapml_targets.errors import EXIT_NO_DEVICE
from tests.offload.commands import LIMIT_SECONDS, started
from tests.offload.sessions import FinishedSession


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def test_every_command_reports_it_by_itself(
    finished: FinishedSession, nobody: str, tmp_path: Path
) -> None:
    device = ("--device", nobody)
    commands: dict[str, tuple[str | Path, ...]] = {
        "offload": ("--model", finished.model, "--session", tmp_path / "new", *device),
        "validate": ("--model", finished.model, *device),
        "run": (finished.folder, "--tokens", "1 2 3", *device),
        "replay": (finished.folder, *device),
    }
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(started(name, *rest, cache=finished.cache))
            for name, rest in commands.items()
        }
        for name, process in running.items():
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
            assert process.returncode == EXIT_NO_DEVICE, (name, errors)
            assert output == "", name
            reported = [line for line in errors.splitlines() if line.startswith("tapml: ")]
            assert len(reported) == 1, (name, errors)
            assert f"no tapml server answers at {nobody} within 10 s" in reported[0]
            assert reported[0].endswith("(nothing listens there)")
