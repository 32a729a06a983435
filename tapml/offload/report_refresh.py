"""The report while a run goes on: written anew now and then, so that an open page is fresh."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from tapml.offload.events import Event, OperatorChanged, Watcher
from tapml.offload.run_state import SETTLED
from tapml_targets.errors import TapmlError

INTERVAL_SECONDS: Final = 10.0
# Writing takes at most this part of a run.
_SHARE: Final = 0.03


class RefreshingReport:
    """A watcher that has the report written after operators are settled, and passes events on.

    First after the first operator that was not the journal's, then every ten seconds at most, and
    less often where writing it takes long.

    Parameters
    ----------
    watcher
        Who else wants the events.
    write
        Writes the report as the run stands.
    """

    def __init__(self, watcher: Watcher, write: Callable[[], object]) -> None:
        self._watcher = watcher
        self._write = write
        self._next = 0.0

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        self._watcher(event)
        if not isinstance(event, OperatorChanged) or event.state not in SETTLED:
            return
        if event.numbers.get("reused") or time.monotonic() < self._next:
            return
        started = time.monotonic()
        # The journal is what counts; if the disk is full it says so itself.
        with contextlib.suppress(TapmlError):
            self._write()
        ended = time.monotonic()
        self._next = ended + max(INTERVAL_SECONDS, (ended - started) / _SHARE)
