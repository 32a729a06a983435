"""Where one operator of a session stands, and the numbers that brought it there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tapml.graph.plan import Operator
    from tapml.localize.diagnosis import Diagnosis
    from tapml.offload.events import OperatorState
    from tapml_targets.library import Library

PASSING: Final = "pass"
OPERATOR_VALIDATION: Final = "operator validation"
MODEL_VALIDATION: Final = "model validation"


@dataclass
class OperatorRecord:
    """Where one operator stands.

    Attributes
    ----------
    operator
        The operator.
    state
        ``waiting``, ``validated`` (its own tests pass and the whole model was not run with it),
        ``moved``, ``kept`` or ``failed``.
    reason
        Why it is kept, failed or no further than validated; empty otherwise.
    read_library
        Gives its kernels, once there are any; :attr:`library` calls it.
    kernel
        Content hash of the Library.
    written
        Folder of the hand-written kernel that stands in the compiled one's place; empty where the
        compiler made it.
    replay
        The operator-wise verdict as JSON data; ``reused`` where it is the journal's.
    model_check
        The model-wise verdict as JSON data, likewise.
    again
        What changed since the verdict that the journal holds, so that it was made again; empty
        where that one stands or there was none.
    repro
        Its repro folder, where it failed.
    diagnosis
        What localization found, where a carved test failed.
    lacks
        Limits of the device that its kernels break, as JSON data
        (:func:`tapml.offload.lacks.lacks_of`).
    seconds
        Time by step: ``operator validation``, ``model validation``.
    """

    operator: Operator
    state: OperatorState = "waiting"
    reason: str = ""
    read_library: Callable[[], Library] | None = None
    kernel: str = ""
    written: str = ""
    replay: dict[str, Any] = field(default_factory=dict)
    model_check: dict[str, Any] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    repro: Path | None = None
    diagnosis: Diagnosis | None = None
    lacks: tuple[dict[str, Any], ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def library(self) -> Library | None:
        """Its kernels, read when they are asked for; None until there are any."""
        return None if self.read_library is None else self.read_library()

    @library.setter
    def library(self, library: Library | None) -> None:
        self.read_library = None if library is None else lambda: library

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the block's time to a step, whatever comes of it."""
        started = time.monotonic()
        try:
            yield
        finally:
            elapsed = time.monotonic() - started
            self.seconds[step] = self.seconds.get(step, 0.0) + elapsed
