"""SIGTERM ends a command as Ctrl-C does: cleanly, with a line about how to continue."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tapml_targets.errors import EXIT_INTERRUPTED, EXIT_TERMINATED


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; the same code cleans up as after Ctrl-C."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise :class:`Terminated` on SIGTERM.

    An existing handler stays, and a server may set another one later. A forked child keeps the
    default.
    """
    own = os.getpid()

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != own:
            os.kill(os.getpid(), number)
        raise Terminated

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    """143 after SIGTERM, 130 after Ctrl-C, as shells have it."""
    return EXIT_TERMINATED if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED


def word_for(interrupt: KeyboardInterrupt) -> str:
    """``terminated`` or ``interrupted``."""
    return "terminated" if isinstance(interrupt, Terminated) else "interrupted"
