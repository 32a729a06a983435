"""What a terminal shows while a session runs: a real pseudo-terminal of several widths."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from tapml.runs.events import PhaseStarted
from tapml.session.events import ModelRuns, OperatorChanged, OperatorsKnown
from tests.cli.runs import BEFORE, MOVING

ROOT = Path(__file__).parents[2]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
MANY = tuple(f"fused_operator_with_a_long_name_{number}" for number in range(137))

# Draws each event once, so that nothing depends on time.
SCRIPT = """
import sys
from tapml.cli.terminal_view import TerminalView
from tapml.cli.progress import watch
from tests.cli import runs, test_terminal_view
with watch() as view:
    assert isinstance(view, TerminalView)
    for event in getattr(test_terminal_view, sys.argv[1]):
        view(event)
        view._live.refresh()
"""
STEPS = (*BEFORE, *MOVING)
LARGE = (
    PhaseStarted("move operators", total=len(MANY)),
    OperatorsKnown(MANY),
    *(OperatorChanged(name, "moved", 90, len(MANY), {"reused": True}) for name in MANY[:90]),
    *(
        event
        for index, name in enumerate(MANY[:90:6])
        for event in (
            OperatorChanged(name, "replaying", index, len(MANY), {"tests": 4}),
            ModelRuns(index, len(MANY)),
            OperatorChanged(name, "moved", index + 1, len(MANY), {"tests": 4, "worst_ratio": 2.5}),
        )
    ),
    OperatorChanged(MANY[90], "replaying", 90, len(MANY), {"tests": 4}),
)


def drawn(events: str, columns: int, rows: int = 24, **environment: str) -> list[str]:
    """Frames and lines as they came, without the codes that move the cursor or colour."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, events],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment},
    )
    os.close(theirs)
    received = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:
            # The other end is closed.
            break
        if not part:
            break
        received += part
    os.close(ours)
    assert process.wait(timeout=60) == 0, received.decode()
    return re.split(r"\r\n|\n|\r", received.decode())


def plain(lines: list[str]) -> list[str]:
    """The same without escapes."""
    return [ESCAPES.sub("", line).rstrip() for line in lines]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    lines = plain(drawn("LARGE", columns))
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("  ✓ fused_operator_with_a_long_name_84 4 tests") for line in lines)


def test_a_terminal_shows_what_runs_where_and_how_far_it_is() -> None:
    text = "\n".join(plain(drawn("STEPS", 100)))
    assert "⠋" in text or "⠙" in text or "move operators" in text
    assert "softmax: replaying 12 tests on Some GPU (Some Platform)" in text
    assert "softmax: running the model with it on Some GPU (Some Platform)" in text
    assert "carve tests  ━━━━━━━━━━━━━━━━━━━━  1/4" in text
    assert "worst ratio 1e+06 in matmul   model runs 1 of 4   1 from the journal" in text
    assert "note: the device has no float16" in text


def test_every_operator_has_a_sign_that_tells_its_state_without_colour() -> None:
    lines = plain(drawn("STEPS", 80, NO_COLOR="1"))
    fields = [line.strip() for line in lines if re.fullmatch(r"  [■✗□·crm]{4}", line)]
    assert fields[0] == "····"
    assert "■r··" in fields
    assert "■m··" in fields
    assert "■■··" in fields
    assert fields[-1] == "■■✗□"
    assert "  ■ 2 moved   ✗ 1 failed   □ 1 kept" in lines


def test_without_colour_there_is_none() -> None:
    coloured, colourless = drawn("STEPS", 80), drawn("STEPS", 80, NO_COLOR="1")
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert any(map(colour.search, coloured))
    assert not any(map(colour.search, colourless))


def test_finished_operators_scroll_away_above() -> None:
    lines = plain(drawn("STEPS", 120))
    assert "  ✓ softmax 12 tests, worst ratio 1.25, 0.5 ms, 2 x the reference's" in lines
    assert "  ✗ matmul 3 tests, worst ratio 1e+06, wrong at [0, 1]" in lines
    assert not any("✓ cos" in line for line in lines), "what stands gets no line of its own"


def test_a_low_terminal_shows_the_part_of_the_field_that_matters() -> None:
    lines = plain(drawn("LARGE", 60, rows=10))
    fields = [line for line in lines if re.fullmatch(r"  [■· r]+", line)]
    assert any("r" in line for line in fields[-4:])
    assert "  ■ 90 moved   · 46 waiting" in lines


def test_a_terminal_without_unicode_gets_ascii() -> None:
    lines = plain(drawn("STEPS", 80, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0"))
    assert "  ##xo" in lines
    assert "  ok softmax 12 tests, worst ratio 1.25, 0.5 ms, 2 x the reference's" in lines
    assert all(line.isascii() for line in lines)


def test_the_cursor_is_shown_again_at_the_end() -> None:
    text = "\n".join(drawn("STEPS", 80))
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
