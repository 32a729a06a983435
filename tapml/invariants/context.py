"""What a process is doing when something is recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from tapml.invariants.record import Fields, Value
from tapml.invariants.summaries import dtype_name


class Context:
    """Facts about a process that all its rows have; equal ones are one object.

    Attributes
    ----------
    stage
        ``init`` before training, then ``train`` or ``eval`` as the model's mode is.
    training
        Whether the model that ran last is in training mode.
    epoch
        Epochs that have ended, counted by the data loaders that training began again.
    world
        Ranks of the job.
    """

    def __init__(self) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self._meta: dict[str, Value] = {}
        self._made: dict[tuple[Value, ...], Fields] = {}
        # By gradient mode and autocast dtype, since something else changed.
        self._now: dict[tuple[bool, str], Fields] = {}
        self.restart()

    def restart(self) -> None:
        """Training has not begun."""
        self.stage, self.training, self.epoch = "init", False, 0
        self._now.clear()

    def follow(self, training: bool) -> None:
        """A model runs, or gradients are cleared, in a mode."""
        stage = "train" if training else "eval"
        if (stage, training) != (self.stage, self.training):
            self.stage, self.training = stage, training
            self._now.clear()

    def begin_epoch(self) -> None:
        """A data loader begins again; before training, it is the first one."""
        if self.stage != "init":
            self.epoch += 1
            self._now.clear()

    def join(self, world: int) -> None:
        """The process is in a group of so many ranks."""
        self.world = world
        self._now.clear()

    def set_meta(self, values: Mapping[str, Value]) -> None:
        """Add values from here on; None removes one."""
        whole = self._meta | {f"meta.{name}": value for name, value in values.items()}
        self._meta = {name: value for name, value in whole.items() if value is not None}
        self._now.clear()
        self._made.clear()

    def now(self) -> Fields:
        """The context of this moment."""
        cast = _cast() if torch._C._is_any_autocast_enabled() else ""
        grad = torch.is_grad_enabled()
        found = self._now.get((grad, cast))
        if found is None:
            key = (self.epoch, self.stage, self.training, grad, cast, self.world)
            found = self._now[grad, cast] = self._made.setdefault(
                key,
                {
                    "epoch": self.epoch,
                    "stage": self.stage,
                    "training": self.training,
                    "grad": grad,
                    "autocast": cast,
                    "world": self.world,
                    **self._meta,
                },
            )
        return found


def _cast() -> str:
    """The dtype of the devices that cast."""
    found = ""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            found = dtype_name(torch.get_autocast_dtype(device))
    return found
