"""What a watch would like to have and need not wait for: made in a thread while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from tapml.carving.carved_test import CarvedTest
from tapml.carving.suite import Suite
from tapml.compare.probes import ProbeCase
from tapml.compare.sensitivity import Twin
from tapml.kernels.float64_sides import reference_of
from tapml.kernels.trial import KernelTrial
from tapml_targets.errors import TapmlError

_END_SECONDS: Final = 10.0


class Preparing:
    """Probes, closer measurements and the reference of some tests.

    Parameters
    ----------
    trial
        Whose.
    tests
        The tests of a quick look.

    Attributes
    ----------
    probes
        The exact probes beside the first test, once they are made.
    reference
        The operator on the trusted platform, once it is compiled.
    finished
        Whether all of it is there, or cannot be had.
    problem
        Why something of this cannot be had; empty where nothing is missing.
    """

    def __init__(self, trial: KernelTrial, tests: Sequence[CarvedTest]) -> None:
        self.probes: tuple[ProbeCase, ...] = ()
        self.reference: Mapping[str, Twin] | None = None
        self.finished = False
        self.problem = ""
        self._trial = trial
        self._names = [test.id for test in tests]
        self._stopped = threading.Event()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, at the first call."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kernel-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End soon, and wait for it."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def take_news(self) -> bool:
        """Whether there is something new since the last call."""
        news = self._news.is_set()
        self._news.clear()
        return news

    def _run(self) -> None:
        try:
            # A suite belongs to one thread.
            with Suite.open(self._trial.facts.suite) as suite:
                self._prepare([suite.test(name) for name in self._names])
        except (TapmlError, ModuleNotFoundError, OSError) as error:
            self.problem = str(error)
        else:
            # TVM and torch are there now: what else is asked for is made at once.
            self._trial.expectations.patient = True
        self.finished = True
        self._news.set()

    def _prepare(self, tests: Sequence[CarvedTest]) -> None:
        operator = self._trial.operator
        self.probes = self._trial.probing.probes(operator, tests[0])
        self._news.set()
        self.reference = reference_of(operator)()
        for test in tests:
            if self._stopped.is_set():
                return
            self._trial.expectations.measure_closer(test)
