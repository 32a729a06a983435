"""A step in micro-batches: their gradients are added up, and the optimizer steps once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from tapml.distributed.optimizers import map_optimizers
from tapml.distributed.packing import map_tensors
from tapml.distributed.parts import count_samples
from tapml_targets.errors import WrongJobError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tapml.distributed.job_file import Job


class _OneStep:
    """An optimizer of which the first micro-batch clears and the last steps."""

    def __init__(self, optimizer: Any, count: int) -> None:
        self._optimizer, self._count, self._number = optimizer, count, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Clear the gradients, before the first micro-batch only."""
        if not self._number:
            self._optimizer.zero_grad(*arguments, **named)

    def step(self, *arguments: Any, **named: Any) -> Any:
        """Step on the mean of the micro-batches, after the last only."""
        self._number += 1
        if self._number < self._count:
            return None
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(self._count)
        return self._optimizer.step(*arguments, **named)


def accumulate(
    job: Job,
    model: nn.Module,
    batch: Any,
    optimizer: Any,
    count: int,
    quiet: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Call the job's step for each of `count` micro-batches; all but the last in `quiet`.

    The job's loss must be a mean over samples. Raises WrongJobError if the samples do not divide.
    """
    if count == 1:
        job.step(model, batch, optimizer)
        return
    samples = count_samples(batch)
    if samples % count:
        raise WrongJobError(
            f"{samples} samples of a rank do not divide into {count} micro-batches: make the batch "
            "larger"
        )
    each = samples // count
    once = map_optimizers(optimizer, lambda each: _OneStep(each, count))
    for number in range(count):
        rows = slice(number * each, (number + 1) * each)
        part = map_tensors(batch, partial(_rows_of, rows=rows, samples=samples))
        with quiet() if number < count - 1 else nullcontext():
            job.step(model, part, once)


def _rows_of(tensor: torch.Tensor, rows: slice, samples: int) -> torch.Tensor:
    """The rows of a tensor that counts samples; another as it is."""
    return tensor[rows] if tensor.ndim and tensor.shape[0] == samples else tensor
