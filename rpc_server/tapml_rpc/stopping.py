"""When a server's process is to stop."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType


class StopRequest:
    """Signals and the end of the process `parent`, 0 for none."""

    def __init__(self, parent: int = 0) -> None:
        self._asked = False
        self._parent = parent
        # The parent holds the other end of standard input open while it lives.
        self.wake_fds = (0,) if parent else ()
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def asked(self) -> bool:
        """Whether to stop."""
        if self._parent and not self._asked:
            ended = bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)
            self._asked = ended or os.getppid() != self._parent
        return self._asked

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
