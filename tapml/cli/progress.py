"""A running session's progress: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from rich.console import Console

from tapml.cli.plain_lines import PlainLines
from tapml.cli.terminal_view import TerminalView
from tapml.runs.events import Watcher


@contextmanager
def watch(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Watcher]:
    """A watcher for `OffloadSession.run`; the display ends with the block.

    The first Ctrl-C is acknowledged immediately; a clean end may take a moment.
    """
    stream = stream or sys.stderr
    display: PlainLines | TerminalView = PlainLines(stream, only_failures=quiet)
    if stream.isatty() and not quiet:
        console = Console(file=stream, highlight=False, emoji=False)
        if not console.is_dumb_terminal:
            display = TerminalView(console)
    with display, _answering_interrupts(display):
        yield display


@contextmanager
def _answering_interrupts(display: PlainLines | TerminalView) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def answer(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        display.interrupted()
        raise KeyboardInterrupt

    # Leave other handlers of Ctrl-C in place.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
