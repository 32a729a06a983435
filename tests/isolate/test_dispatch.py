"""The pool's thread."""

from __future__ import annotations

import threading

import pytest

from tapml.isolate.dispatch import Dispatcher

_SECONDS = 5.0


def test_a_pool_that_is_closed_behind_its_last_action_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though one read takes what wakes the thread for both."""
    reading, given = threading.Event(), threading.Event()
    wake = Dispatcher._wake

    def late(self: Dispatcher) -> None:
        reading.set()
        given.wait(_SECONDS)
        wake(self)

    monkeypatch.setattr(Dispatcher, "_wake", late)
    dispatcher, ran = Dispatcher([], 1), threading.Event()
    dispatcher.do(lambda: None)
    assert reading.wait(_SECONDS)
    dispatcher.do(ran.set)
    closing = threading.Thread(target=dispatcher.close, daemon=True)
    closing.start()
    while not dispatcher.closed:
        pass
    with dispatcher._lock:  # It has sent what wakes the thread.
        given.set()
    closing.join(_SECONDS)
    assert ran.is_set() and not closing.is_alive()
