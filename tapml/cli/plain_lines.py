"""A session's progress as log lines, with signs of life during long steps."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Final, Self, TextIO

from tapml.cli.operator_text import REPORTED, HeldBack, operator_line, remaining
from tapml.runs.events import Event, Note, PhaseEnded
from tapml.runs.wording import duration
from tapml.session.events import OperatorChanged
from tapml.session.run_state import NO_PHASE, RunState

SILENCE_SECONDS: Final = 10.0
_LONGEST_SILENCE_SECONDS: Final = 60.0


class PlainLines:
    """A watcher that writes lines to a log; a context manager.

    Parameters
    ----------
    stream
        The log.
    only_failures
        Report only operators that do not move.
    silence
        Seconds until the first sign of life; the interval then doubles up to a minute.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        only_failures: bool = False,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self._stream = stream
        self._only_failures = only_failures
        self._silence = silence
        self._state = RunState()
        self._held = HeldBack()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._last = time.monotonic()
        self._wait = silence
        self._thread = threading.Thread(target=self._show_life, name="signs-of-life", daemon=True)

    def __enter__(self) -> Self:
        if not self._only_failures:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            self._release()

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        with self._lock:
            self._state.apply(event)
            self._tell(event)

    def interrupted(self) -> None:
        """Report the interrupt."""
        # In a signal handler: the interrupted code may hold the lock or be writing.
        with contextlib.suppress(OSError, ValueError):
            os.write(self._stream.fileno(), b"interrupted: ending the step in hand\n")

    def _tell(self, event: Event) -> None:
        if isinstance(event, OperatorChanged):
            if event.state not in REPORTED:
                return
            if event.state in {"moved", "validated"} and self._only_failures:
                return
            if not self._held.take(event):
                self._release()
                # A failure may be the end of the run.
                left = "" if event.state == "failed" else remaining(self._state)
                self._print(self._operator(event, left))
        elif self._only_failures:
            if isinstance(event, PhaseEnded):
                self._release()
        elif isinstance(event, PhaseEnded):
            self._release()
            self._print(f"{event.name}: {event.detail or 'done'} ({event.seconds:.1f} s)")
        elif isinstance(event, Note):
            self._release()
            self._print(f"note: {event.text}")

    def _operator(self, event: OperatorChanged, left: str = "") -> str:
        tail = f"  ({left})" if left else ""
        return (
            f"[{event.done}/{event.total}] {event.operator}: {event.state}, "
            f"{operator_line(event)}{tail}"
        )

    def _release(self) -> None:
        text, listed = self._held.release()
        for line in (text, *map(self._operator, listed)):
            if line:
                self._print(line)

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)
        self._last, self._wait = time.monotonic(), self._silence

    def _show_life(self) -> None:
        while not self._closed.wait(self._silence / 10):
            with self._lock, contextlib.suppress(ValueError):
                quiet = time.monotonic() - self._last
                if quiet < self._wait:
                    continue
                longer = min(2 * self._wait, max(_LONGEST_SILENCE_SECONDS, self._silence))
                self._release()
                self._print(_under_way(self._state))
                self._wait = longer


def _under_way(state: RunState) -> str:
    """The current step with its progress and time left."""
    parts = []
    if state.total:
        parts.append(f"{state.done} of {state.total}")
    if state.step:
        parts.append(f"{state.step} for {duration(state.step_seconds)}")
    elif state.detail:
        parts.append(state.detail)
    parts.append(f"{duration(state.phase_seconds)} so far")
    if remaining(state):
        parts.append(remaining(state))
    return f"{state.phase or NO_PHASE}: {', '.join(parts)}"
