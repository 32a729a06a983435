"""Model-wise verdicts on the numbers of any outputs, each measured by its own output's scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.durable.strict_json import to_strict
from tapml.verdicts.modelwise import DEGRADED_FACTOR, AllowedLogitError
from tapml.verdicts.verdict import Status
from tapml_targets.errors import InputError


@dataclass(frozen=True)
class ValueVerdict:
    """Outputs of a target against the reference's.

    Attributes
    ----------
    status
        ``pass``, ``degraded`` or ``fail``.
    outputs
        How many were compared.
    allowed
        The largest error that passes, of an output's largest number.
    max_relative
        Largest error of a number, of its output's largest number; Inf where a NaN, an infinity or a
        whole number differs.
    worst
        The output with the largest error.
    reason
        Why, in numbers.
    """

    status: Status
    outputs: int
    allowed: AllowedLogitError
    max_relative: float
    worst: str
    reason: str

    @property
    def severity(self) -> float:
        """Largest error over the allowed one."""
        return self.max_relative / max(self.allowed.value, 1e-300)

    @property
    def rank(self) -> tuple[int, float]:
        """By the largest error."""
        return 0, self.severity

    def to_json(self) -> dict[str, Any]:
        """Plain data; NaN and Inf become text."""
        plain: dict[str, Any] = to_strict(asdict(self))
        return plain


def scale_of(output: NDArray[Any]) -> float:
    """The largest finite magnitude of an output; 1 if it has none.

    >>> scale_of(np.array([1.0, -4.0, np.inf])), scale_of(np.zeros(3))
    (4.0, 1.0)
    """
    finite = np.abs(output[np.isfinite(output)].astype(np.float64))
    return float(finite.max(initial=0.0)) or 1.0


def compare_values(
    reference: NDArray[Any],
    target: NDArray[Any],
    allowed: AllowedLogitError,
    outputs: Sequence[tuple[str, bool]],
) -> ValueVerdict:
    """Compare outputs.

    Parameters
    ----------
    reference, target
        A row for each output, ``[outputs, numbers]``, with zeros behind the shorter ones.
    allowed
        Of numbers whose largest is 1.
    outputs
        Name of each output, and whether it must be equal (whole numbers and truth values).

    Raises
    ------
    InputError
        If the shapes differ.
    """
    if reference.shape != target.shape or len(reference) != len(outputs):
        raise InputError(
            f"outputs to compare have shapes {reference.shape} and {target.shape}: expected the "
            f"same, [{len(outputs)}, numbers]"
        )
    worst, largest = outputs[0][0], 0.0
    for (name, exact), want, got in zip(outputs, reference, target, strict=True):
        with np.errstate(all="ignore"):
            error = np.abs(got.astype(np.float64) - want.astype(np.float64)) / scale_of(want)
        error[(want == got) | (np.isnan(want) & np.isnan(got))] = 0.0
        error[np.isnan(error)] = np.inf
        found = float(error.max(initial=0.0))
        if exact and found:
            found = np.inf
        if found > largest:
            worst, largest = name, found
    status: Status = "pass" if largest <= allowed.value else "degraded"
    if not largest <= DEGRADED_FACTOR * allowed.value:
        status = "fail"
    return ValueVerdict(
        status,
        len(outputs),
        allowed,
        largest,
        worst,
        f"largest error {largest:.3g} of an output's largest number, allowed {allowed}, in output "
        f"{worst} of {len(outputs)}",
    )
