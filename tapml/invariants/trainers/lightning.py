"""A callback for the Trainer of Lightning, under either of its two package names."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

from tapml.invariants.checking import CheckReport, OnViolation
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.trainers.attached import Attached
from tapml_targets.errors import SetupError

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    """The class of callbacks of the package in use: the two packages do not know each other's."""
    for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise SetupError("the callback for Lightning needs Lightning: pip install lightning")


class InvariantsCallback(_callback_class()):  # type: ignore[misc]
    """Watches what a Trainer trains, or records it; parameters as of :class:`Attached`.

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
        super().__init__()
        self._attached = Attached(invariants, trace, on_violation, port)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        optimizers = [getattr(each, "optimizer", each) for each in trainer.optimizers]
        batches = trainer.num_training_batches
        known = int(batches) if math.isfinite(batches) else None
        self._attached.begin(pl_module, optimizers, _planned(trainer), known)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        """Stop here if the run is to stop."""
        self._attached.after_step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End."""
        self._attached.end()
        self._attached.after_step()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End."""
        self._attached.end()

    def report(self) -> CheckReport:
        """What was found so far."""
        return self._attached.report()


def _planned(trainer: Any) -> int | None:
    """The optimizer steps that the arguments ask for; None without a bound."""
    if trainer.max_steps > 0:
        return int(trainer.max_steps)
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    if epochs is None or epochs < 0 or not math.isfinite(batches):
        return None
    return int(epochs * math.ceil(batches / trainer.accumulate_grad_batches))
