"""How much float32 error is honest, where no float64 twin can say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tapml.distributed.judging import FLOAT32, Limits, judge
from tapml.distributed.run_records import Key, Run, Tensors

_SENSITIVITIES: Final = 32
# With a short format, errors are few and large: one of a hundred roundings may show.
_SHORT_SENSITIVITIES: Final = 8


def sensitivity_limits(
    reference: Run, perturbed: Sequence[Run], tensors: Tensors, roundoff: float
) -> Limits:
    """Limits from runs of one device whose weights were moved by up to `roundoff`, relative.

    What this does to a tensor, times 32, is what the order of a sum may do to it; times 8 for
    formats shorter than float32.
    """
    factor = _SENSITIVITIES if roundoff <= FLOAT32.epsilon else _SHORT_SENSITIVITIES
    found: dict[Key, float] = {}
    for run in perturbed:
        for key, error in judge(reference, run, tensors, FLOAT32).errors.items():
            found[key] = max(found.get(key, 0.0), factor * error)
    return replace(FLOAT32, by_tensor=found)
