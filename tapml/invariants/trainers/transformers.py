"""A callback for the Trainer of transformers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from tapml.invariants.checking import CheckReport, OnViolation
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.trainers.attached import Attached


class InvariantsCallback(TrainerCallback):  # type: ignore[misc]
    """Watches what a Trainer trains, or records it; parameters as of :class:`Attached`.

    The steps that the arguments ask for are the run's plan, whatever the Trainer makes of them.

    Examples
    --------
    ``Trainer(..., callbacks=[InvariantsCallback("train.invariants", on_violation="stop")])``
    """

    def __init__(
        self,
        invariants: InvariantSet | str | Path | None = None,
        *,
        trace: str | Path | None = None,
        on_violation: OnViolation = "warn",
        port: int | None = None,
    ) -> None:
        self._attached = Attached(invariants, trace, on_violation, port)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin."""
        optimizer = kwargs.get("optimizer")
        # Accelerate wraps the optimizer that makes the steps.
        optimizer = getattr(optimizer, "optimizer", optimizer)
        found = [] if optimizer is None else [optimizer]
        planned = _planned(args, kwargs.get("train_dataloader"))
        self._attached.begin(kwargs["model"], found, planned)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop here if the run is to stop."""
        self._attached.after_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End."""
        self._attached.end()
        self._attached.after_step()

    def report(self) -> CheckReport:
        """What was found so far."""
        return self._attached.report()


def _planned(args: Any, loader: Any) -> int | None:
    """The optimizer steps that the arguments ask for, None if the data have no length."""
    if args.max_steps > 0:
        return int(args.max_steps)
    try:
        batches = len(loader)
    except TypeError:
        return None
    per_epoch = max(1, math.ceil(batches / args.gradient_accumulation_steps))
    planned: int = math.ceil(args.num_train_epochs * per_epoch)
    return planned
