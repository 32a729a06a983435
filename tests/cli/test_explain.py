"""An error is a line or two; a compiler's log stays visible where it says what is wrong."""

from __future__ import annotations

from tapml.cli.main import _explain
from tapml_targets.errors import CompileError, DeviceLostError, RemoteError

STACK = "\n".join(f'  File "driver.py", line {number}' for number in range(40))


def test_a_lost_device_is_told_in_its_first_line_with_what_the_driver_said() -> None:
    error = DeviceLostError(
        f"the server ended with SIGABRT\nFatal Python error: Aborted\n{STACK}\nLLVM ERROR: no CPU",
        command="call(softmax)",
    )
    first, said, hint = _explain(error, debug=False).splitlines()
    assert first == "the server ended with SIGABRT"
    assert said.strip() == "LLVM ERROR: no CPU"
    assert "--debug shows the remote traceback" in hint


def test_a_remote_error_that_says_everything_needs_no_hint() -> None:
    assert _explain(RemoteError("the buffer is gone"), debug=False) == "the buffer is gone"


def test_debug_shows_everything() -> None:
    error = DeviceLostError(f"ended\n{STACK}", remote_traceback="remote", driver_log="log")
    shown = _explain(error, debug=True)
    assert STACK in shown
    assert "on the device:\nremote" in shown
    assert "driver log:\nlog" in shown


def test_a_build_log_keeps_the_lines_about_the_error() -> None:
    noise = [f"note {number}" for number in range(100)]
    lines = ["device does not build this program:", *noise, "<kernel>:7:3: error: no half", *noise]
    shown = _explain(CompileError("\n".join(lines)), debug=False).splitlines()
    assert shown[:2] == [lines[0], "<kernel>:7:3: error: no half"]
    assert len(shown) == 21
    assert shown[-1] == "(182 more lines: tapml --debug)"
    assert _explain(CompileError("\n".join(lines)), debug=True).splitlines() == lines


def test_a_short_log_is_shown_as_it_is() -> None:
    log = "does not build:\n" + "\n".join(f"line {number}" for number in range(15))
    assert _explain(CompileError(log), debug=False) == log
