"""``ctc_loss``: the sum over all alignments of labels with steps, step after step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from tapml_targets.errors import UnsupportedOperatorError

# Each becomes operations of its own.
_MOST_STEPS: Final = 256
_MEAN, _SUM = 1, 2


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int] | Tensor,
    target_lengths: Sequence[int] | Tensor,
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    """``torch.ctc_loss``, whose results of PyTorch have an extent that its numbers decide.

    Parameters
    ----------
    log_probs
        ``[T, N, C]`` or ``[T, C]``, floating-point.
    targets
        Labels, ``[N, S]`` or one row after the other.
    input_lengths, target_lengths
        How many steps and labels of each row count, ``[N]``.
    reduction
        0 for none, 1 for the mean of what each label costs, 2 for the sum.

    Raises
    ------
    UnsupportedOperatorError
        If the steps are too many, or not a fixed number.
    """
    single = log_probs.dim() == 2
    rows = log_probs.unsqueeze(1) if single else log_probs
    steps, batch, _ = rows.shape
    if not isinstance(steps, int) or steps > _MOST_STEPS:
        raise UnsupportedOperatorError(
            f"ctc_loss is imported of fixed numbers of steps up to {_MOST_STEPS}, this one has "
            f"{steps}"
        )
    labels, lengths = _in_rows(targets, target_lengths, batch)
    loss = _loss(rows, labels, _as_tensor(input_lengths), lengths, blank)
    if zero_infinity:
        loss = torch.where(torch.isinf(loss), torch.zeros_like(loss), loss)
    if reduction == _MEAN:
        return (loss / lengths.clamp(min=1).to(loss.dtype)).mean()
    if reduction == _SUM:
        return loss.sum()
    return loss.squeeze(0) if single else loss


def _loss(rows: Tensor, labels: Tensor, ends: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """Of each row: labels are between blanks, and a step stays, or goes on by one or by two.

    By two where a label is another one than that before.
    """
    steps, batch, _ = rows.shape
    count = 2 * labels.shape[1] + 1
    places = torch.arange(count)
    # What stands behind a row's labels is padding, of any number.
    counted = torch.arange(labels.shape[1]) < lengths.unsqueeze(1)
    labels = torch.where(counted, labels, torch.full_like(labels, blank))
    blanks = labels.new_full((batch, 1), blank)
    between = torch.stack([blanks.expand(labels.shape), labels], -1).reshape(batch, count - 1)
    label = torch.cat([between, blanks], 1)
    before = torch.cat([torch.full_like(blanks, -1)] * 2 + [label], 1)[:, :count]
    jumps = (places % 2 == 1) & (before != label) & (places > 1)
    nothing, zero = (torch.full((), each, dtype=rows.dtype) for each in (-math.inf, 0.0))
    given = rows.gather(2, label.to(torch.int64).unsqueeze(0).expand(steps, batch, count))
    edge = nothing.expand(batch, 2)
    # Before the first step, all is in the first blank.
    states = [torch.where(places == 0, zero, nothing).expand(batch, count)]
    for step in range(steps):
        state = states[-1]
        one = torch.cat([edge[:, :1], state], 1)[:, :count]
        two = torch.where(jumps, torch.cat([edge, state], 1)[:, :count], nothing)
        states.append(_log_of_sum(torch.stack([state, one, two], -1)) + given[step])
    last = (torch.arange(steps + 1) == ends.unsqueeze(1)).unsqueeze(2)
    final = torch.where(last, torch.stack(states, 1), nothing).amax(1)
    end = 2 * lengths.unsqueeze(1)
    ending = (places == end) | (places == end - 1)
    return -_log_of_sum(torch.where(ending, final, nothing))


def _log_of_sum(parts: Tensor) -> Tensor:
    largest = parts.amax(-1, keepdim=True)
    largest = torch.where(torch.isinf(largest), torch.zeros_like(largest), largest)
    return torch.log(torch.exp(parts - largest).sum(-1)) + largest.squeeze(-1)


def _as_tensor(lengths: Sequence[int] | Tensor) -> Tensor:
    return lengths.reshape(-1) if isinstance(lengths, Tensor) else torch.tensor(list(lengths))


def _in_rows(targets: Tensor, lengths: Any, batch: int) -> tuple[Tensor, Tensor]:
    """Labels ``[N, S]``, also of targets that are one after the other, and how many each has."""
    counts = _as_tensor(lengths)
    if targets.dim() == 2:
        return targets, counts
    if batch == 1:
        return targets.reshape(1, -1), counts
    starts = counts.cumsum(0) - counts
    longest = targets.shape[0] if isinstance(lengths, Tensor) else max(lengths, default=0)
    places = (starts.unsqueeze(1) + torch.arange(longest)).clamp(max=max(targets.shape[0] - 1, 0))
    return targets.index_select(0, places.reshape(-1)).reshape(batch, longest), counts
