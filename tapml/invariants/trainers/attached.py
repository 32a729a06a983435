"""What a callback does, whatever library calls it: record a trainer's run, or watch it."""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from pathlib import Path

import torch

from tapml.invariants.checking import CheckReport, OnViolation, check_on_violation, said
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.recorder import set_meta
from tapml.invariants.watching import InvariantViolated, Watch, watch
from tapml_targets.errors import InputError


class Attached:
    """A recording or a watch that a trainer's events begin and end.

    Parameters
    ----------
    invariants
        Watch against these: a set, its file, or the name of a curated one.
    trace
        Or record to this folder, to learn from with ``tapml invariants infer``.
    on_violation
        As of :func:`tapml.invariants.watch`; ``stop`` raises after the step of the violation.
    port
        Serve a live page while it trains, as of :func:`tapml.invariants.watch`.

    Raises
    ------
    InputError
        If an argument is wrong, or both or neither of `invariants` and `trace` are given.
    """

    def __init__(
        self,
        invariants: InvariantSet | str | Path | None,
        trace: str | Path | None,
        on_violation: OnViolation,
        port: int | None,
    ) -> None:
        # Told at once, and not when training begins.
        if (invariants is None) == (trace is None):
            raise InputError("give either invariants, to watch the run, or trace, to record it")
        check_on_violation(on_violation)
        self._invariants = invariants
        self._trace = trace
        self._on_violation = on_violation
        self._port = port
        self._stack = ExitStack()
        # A trainer that raises tells nobody: the hooks go with the callback at the latest.
        weakref.finalize(self, self._stack.close)
        self._watched: Watch | None = None
        self._told = 0

    def begin(
        self,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        planned_steps: int | None,
        planned_batches: int | None = None,
    ) -> None:
        """Training begins; what an earlier training left open is closed.

        The plan is the optimizer steps of the run and the batches of an epoch, where they are
        known.
        """
        self._stack.close()
        self._told = 0
        # This class stops the run itself, where the trainer can be left.
        kind: OnViolation = "report" if self._on_violation == "stop" else self._on_violation
        watching = watch(
            model,
            *optimizers,
            invariants=self._invariants,
            trace=self._trace,
            on_violation=kind,
            # One page for a machine: that of its first rank.
            port=self._port if os.environ.get("LOCAL_RANK", "0") == "0" else None,
        )
        watched = self._stack.enter_context(watching)
        self._watched = watched if self._trace is None else None
        set_meta(planned_steps=planned_steps, planned_batches=planned_batches)

    def after_step(self) -> None:
        """An optimizer step has been made. Raises InvariantViolated if the run is to stop."""
        findings = list(self._watched.checker.findings.values()) if self._watched else []
        new = findings[self._told :]
        self._told = len(findings)
        if new and self._on_violation == "stop":
            self.end()
            raise InvariantViolated(said(new[0]))

    def end(self) -> None:
        """Training has ended; the report stays."""
        self._stack.close()

    def report(self) -> CheckReport:
        """What was found so far. Raises InputError if no run was watched."""
        if self._watched is None:
            raise InputError("this callback has watched no run: give it invariants and train")
        return self._watched.report()
