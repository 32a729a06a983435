"""What is kept of the last words of a backend's process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tapml.comparing.processes import _last_words

_BROKEN = """
import ctypes, faulthandler, sys, threading
faulthandler.enable()

def wait(started=threading.Event()):
    started.set()
    threading.Event().wait()

def broken():
    ctypes.string_at(0)

waiting, breaking = (wait, broken) if sys.argv[1] == "main" else (broken, wait)
threading.Thread(target=waiting, daemon=True).start()
breaking()
"""


@pytest.mark.parametrize("where", ["main", "another"])
def test_a_crash_is_laid_at_the_thread_that_crashed(where: str) -> None:
    command = [sys.executable, "-c", _BROKEN, where]
    said = subprocess.run(command, check=False, capture_output=True, text=True)
    assert said.stderr.count("most recent call first") == 2
    assert "ctypes/__init__.py:" in _last_words(said.stderr)[0]


def test_where_a_librarys_own_thread_crashes_the_oldest_threads_call_is_named() -> None:
    stacks = "Fatal Python error: Aborted\n" + "".join(
        f'\nThread 0x{at} (most recent call first):\n  File "/a/{name}.py", line 4 in it\n'
        for at, name in enumerate(["waits", "calls"])
    )
    place, thrown = _last_words("terminate\n  what(): too large\n" + stacks)
    assert place.endswith("a/calls.py:4") and thrown == "too large"
