"""The frameworks that jobs are written in, and the jobs of children that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tapml.distributed.engine import Engine
from tapml_targets.errors import InputError


@dataclass(frozen=True)
class Framework:
    """How jobs of a framework are run.

    Attributes
    ----------
    prepare, run, slices
        Jobs of children: :mod:`tapml.distributed.preparing`, :mod:`tapml.distributed.rank` and
        :mod:`tapml.distributed.slices` say what they do.
    package
        What must be installed.
    preload
        Modules that every child imports.
    one_process
        Whether one process drives all devices, and answers for all ranks; else each rank is one.
    variables
        Environment variables of children.
    """

    prepare: str
    run: str
    slices: str
    package: str
    preload: tuple[str, ...]
    one_process: bool = False
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def jobs(self) -> list[str]:
        """All jobs of children."""
        return [self.prepare, self.run, self.slices, READY]


READY: Final = "tapml.distributed.job_sources:ready"
TORCH: Final = Framework(
    "tapml.distributed.preparing:prepare",
    "tapml.distributed.rank:run",
    "tapml.distributed.slices:slice_gradients",
    "torch",
    (
        "torch",
        "torch._dynamo",
        "torch.optim",
        "torch.distributed.tensor",
        "tapml.distributed.rank",
        "tapml.distributed.slices",
    ),
)


def framework_of(engines: Sequence[Engine]) -> Framework:
    """The framework of all engines; PyTorch for none. Raises InputError if they have several."""
    found = {getattr(each.settings, "FRAMEWORK", TORCH): each.name for each in engines}
    if len(found) > 1:
        names = " and ".join(found.values())
        raise InputError(f"{names} run jobs of different frameworks: check one at a time")
    return next(iter(found), TORCH)
