"""The state of one operator of a session, and its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.verdicts.verdict import Cause

if TYPE_CHECKING:
    from tapml.failures.diagnosis import Diagnosis
    from tapml.plan.graph_plan import Operator
    from tapml.session.events import OperatorState
    from tapml_targets.library import Library

PASSING: Final = "pass"
OPERATOR_VALIDATION: Final = "operator validation"
MODEL_VALIDATION: Final = "model validation"


@dataclass
class OperatorRecord:
    """The state and results of one operator.

    Attributes
    ----------
    operator
        The operator.
    state
        ``waiting``, ``validated`` (its tests pass, but the model has not run with it), ``moved``,
        ``kept`` or ``failed``.
    reason
        Why it is kept, failed or only validated; empty otherwise.
    cause
        The cause of a failure; ``Cause.NONE`` without one.
    read_library
        Returns its kernels, once there are any; :attr:`library` calls it.
    kernel
        Content hash of the Library.
    written
        Folder of the hand-written kernel that it uses; empty for a compiled kernel.
    replay, model_check
        The operator-wise and the model-wise verdict as JSON data; ``reused`` is true if it is from
        the journal.
    again
        What changed since the journal's verdict, if it was made again; otherwise empty.
    repro
        Its repro folder, if it failed.
    diagnosis
        Its diagnosis, if a carved test failed.
    lacks
        Limits of the device that its kernels violate, as JSON data
        (:func:`tapml.offload.limit_violations.limit_violations`).
    seconds
        Time by step: ``operator validation``, ``model validation``.
    """

    operator: Operator
    state: OperatorState = "waiting"
    reason: str = ""
    cause: Cause = Cause.NONE
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
        """Its kernels, read on access; None until there are any."""
        return None if self.read_library is None else self.read_library()

    @library.setter
    def library(self, library: Library | None) -> None:
        self.read_library = None if library is None else lambda: library

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the block's time to a step, even if the block raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            elapsed = time.monotonic() - started
            self.seconds[step] = self.seconds.get(step, 0.0) + elapsed
