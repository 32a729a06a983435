"""What is kept of a process's output."""

from __future__ import annotations

import io

from tapml.isolate.server import tail


def test_the_end_is_kept() -> None:
    assert tail(io.BytesIO(b"first\n" * 2000 + b"last \n")).endswith("first\nlast")


def test_of_a_fatal_error_its_cause_is_kept_and_not_the_long_lists_after_it() -> None:
    cause = b"terminate called\n  what():  no memory\nFatal Python error: Aborted\n"
    kept = tail(io.BytesIO(b"before\n" * 2000 + cause + b"Extension modules: " + b"m, " * 5000))

    assert "what():  no memory" in kept
    assert "Fatal Python error: Aborted" in kept
