"""A part of this process recorded, in memory or to a trace folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tapml.invariants.inference import Run
from tapml.invariants.instrument import Instruments
from tapml.invariants.record import Row, windows_of
from tapml.invariants.recorder import Recorder
from tapml.invariants.trace import TraceWriter


@dataclass
class Recording:
    """Rows of a block; complete at its end."""

    rows: list[Row] = field(default_factory=list)

    def write(self, rows: list[Row], *, wait: bool) -> None:
        """Keep rows of the recorder."""
        del wait
        self.rows += rows

    def run(self, name: str = "") -> Run:
        """What was recorded, to learn from or to check."""
        return Run(name, tuple(windows_of([self.rows])))


@contextmanager
def recorded() -> Iterator[Recording]:
    """Record what is trained inside the block; step -1 is what comes before training.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with recorded() as recording:
    ...     for _ in range(3):
    ...         model(torch.ones(4, 2)).sum().backward()
    ...         optimizer.step()
    >>> [window.step for window in recording.run().windows]
    [-1, 0, 1, 2]
    """
    recording = Recording()
    recorder = Recorder(recording)
    with Instruments(recorder).installed():
        yield recording
    recorder.end()


@contextmanager
def recorded_to(
    folder: Path, *parts: torch.nn.Module | torch.optim.Optimizer
) -> Iterator[Recorder]:
    """Write what is trained inside the block to a trace folder, as one rank of several may.

    Parameters
    ----------
    folder
        It exists.
    parts
        The model and the optimizer, if they exist already.

    Raises
    ------
    SetupError
        If the trace cannot be written.
    """
    writer = TraceWriter(folder)
    recorder = Recorder(writer)
    failure = ""
    try:
        instruments = Instruments(recorder)
        instruments.variables.add(*parts)
        with instruments.installed():
            yield recorder
    except BaseException as error:
        failure = type(error).__name__
        raise
    finally:
        recorder.end(failure=failure)
        writer.close()
