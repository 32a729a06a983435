"""A lost device is reported in the driver's own words where it left any."""

from __future__ import annotations

import pytest

from tapml.cli import main
from tapml.replaying.failure_text import headline, last_driver_line, with_context
from tapml_targets.errors import DeviceLostError, DeviceRestartedError, ReferenceLostError

WORDS = "Could not find a dominating alternative variable."
SENT = "last commands sent:\n  load(157, '0525fc7c')"
CRASH = (
    "Fatal Python error: Aborted\n\nCurrent thread 0x00007f2a (most recent call first):\n"
    '  File "programs.py", line 161 in _build_source'
)
ENDED = "the server ended: signal SIGABRT"
LOST = {
    "printed": (DeviceLostError(f"{ENDED}; it printed last:\nbuilding\n{WORDS}\n{SENT}"), WORDS),
    "printed elsewhere": (
        DeviceRestartedError(
            f"the worker died\n{SENT.replace('sent', 'begun')}", driver_log=f"{WORDS}\n{CRASH}\n"
        ),
        WORDS,
    ),
    "crashed elsewhere": (DeviceRestartedError("the worker died", driver_log=CRASH), ""),
    "ended": (DeviceLostError(f"{ENDED}\n{SENT}"), ""),
    "dropped": (DeviceLostError("the connection to the server dropped"), ""),
}


@pytest.mark.parametrize("how", LOST)
def test_what_the_driver_said_is_found_among_what_was_printed(how: str) -> None:
    error, words = LOST[how]
    assert last_driver_line(error) == words
    assert (
        last_driver_line(with_context(error, before="while 'cos' was tried: ", after="!")) == words
    )


def test_the_headline_announces_nothing() -> None:
    assert headline(LOST["printed"][0]) == ENDED
    assert headline(LOST["ended"][0]) == ENDED
    assert headline(DeviceLostError("it printed:\nnothing")) == "it printed"


def test_what_to_do_next_is_in_the_first_line() -> None:
    error = with_context(ReferenceLostError(f"{ENDED}\n{SENT}"), after="; continue")
    assert type(error) is ReferenceLostError
    assert str(error) == f"{ENDED}; continue\n{SENT}"


@pytest.mark.parametrize("how", LOST)
def test_the_command_line_says_what_the_driver_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    error, words = LOST[how]

    def lose(*_: object) -> None:
        raise with_context(error)

    monkeypatch.setattr("tapml.cli.doctor.run", lose)
    assert main.main(["doctor"]) == error.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"tapml: {headline(error)}"
    assert (f"  {words}" in lines) == bool(words)
