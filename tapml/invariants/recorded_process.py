"""A process under ``tapml invariants collect``: recording begins when it has imported PyTorch."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from tapml.invariants.environment import FOLDER_VARIABLE, NEEDS_VARIABLE


def begin() -> None:
    """Record this process until it ends; called once, when PyTorch has been imported."""
    import msgspec

    from tapml.invariants.instrument import Instruments
    from tapml.invariants.needs import Needs
    from tapml.invariants.recorder import Recorder
    from tapml.invariants.trace import TraceWriter

    writers = [TraceWriter(Path(os.environ[FOLDER_VARIABLE]))]
    recorder = Recorder(writers[0])
    stack = contextlib.ExitStack()
    needs = os.environ.get(NEEDS_VARIABLE)
    only = None if needs is None else msgspec.json.decode(Path(needs).read_bytes(), type=Needs)
    stack.enter_context(Instruments(recorder, needs=only).installed())
    failure: list[str] = []
    report = sys.excepthook

    def failed(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        failure.append(kind.__name__)
        report(kind, error, trace)

    sys.excepthook = failed

    def end() -> None:
        stack.close()
        if recorder.enabled:
            recorder.end(failure=failure[0] if failure else "")
            writers[-1].close()
            # A process may come here in two ways.
            recorder.enabled = False

    def again() -> TraceWriter:
        writers.append(TraceWriter(Path(os.environ[FOLDER_VARIABLE])))
        return writers[-1]

    leave = os._exit

    def leaving(status: int) -> NoReturn:
        if status and not failure:
            failure.append(f"exit {status}")
        try:
            end()
        finally:
            leave(status)

    os._exit = leaving
    recorder.again = again
    atexit.register(end)
