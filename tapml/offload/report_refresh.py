"""Rewrites the report during a run, so that an open page stays current."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from tapml.runs.events import Event, Watcher
from tapml.session.events import OperatorChanged
from tapml.session.run_state import SETTLED
from tapml_targets.errors import TapmlError

INTERVAL_SECONDS: Final = 10.0
# Writing takes at most this share of the time.
_SHARE: Final = 0.03


class RefreshingReport:
    """A watcher that calls `write` after operators are settled, and passes events on.

    It writes after the first operator that was not reused, then at most every ten seconds, and
    less often if writing is slow.
    """

    def __init__(self, watcher: Watcher, write: Callable[[], object]) -> None:
        self._watcher = watcher
        self._write = write
        self._next = 0.0

    def __call__(self, event: Event) -> None:
        """Pass an event on, and write the report if it is due."""
        self._watcher(event)
        if not isinstance(event, OperatorChanged) or event.state not in SETTLED:
            return
        if event.numbers.get("reused") or time.monotonic() < self._next:
            return
        started = time.monotonic()
        # Ignore errors: if the disk is full, the journal reports it.
        with contextlib.suppress(TapmlError):
            self._write()
        ended = time.monotonic()
        self._next = ended + max(INTERVAL_SECONDS, (ended - started) / _SHARE)
