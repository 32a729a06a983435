"""Model-wise verdicts (MODELWISEVALIDATION of Algorithm 1): logits and tokens of the model.

Teacher-forced: the target is given the reference's tokens, so that one near tie does not make
every later position differ. Free-running tokens are only reported, with the first difference and
the reference's margin there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tapml.durable.strict_json import to_strict
from tapml.verdicts.verdict import Status, worse
from tapml_targets.errors import InputError
from tapml_targets.float_formats import Float64s, float_format

ROOTED_FACTOR: Final = 16.0
"""How much further from the reference a target may be than PyTorch is."""
FLOOR_ULPS: Final = {"float64": 32.0, "float32": 32.0, "float16": 4.0, "bfloat16": 4.0}
"""Error that always passes, in ulp of the largest logit, by the model's dtype.

A short rooting prompt may agree with PyTorch to the last bit by chance.
"""
DEGRADED_FACTOR: Final = 4.0
"""Up to this many times the allowed error a result is degraded; beyond it has failed."""


@dataclass(frozen=True)
class AllowedLogitError:
    """How far a target's logits may be from the reference's, and why.

    Attributes
    ----------
    value
        The larger of the two parts, in logits.
    from_rooting
        ``ROOTED_FACTOR`` times the largest deviation between the reference and PyTorch, two right
        implementations that round differently.
    from_dtype
        ``FLOOR_ULPS`` units in the last place of the model's dtype at the largest logit.
    """

    value: float
    from_rooting: float
    from_dtype: float

    def __str__(self) -> str:
        source = (
            f"{ROOTED_FACTOR:g} times the reference's deviation from PyTorch"
            if self.value == self.from_rooting
            else "a few ulp of the largest logit"
        )
        return f"{self.value:.3g} ({source})"


class WholeVerdict(Protocol):
    """A verdict on a complete model."""

    @property
    def status(self) -> Status:
        """``pass``, ``degraded``, ``fail`` or ``not run``."""

    @property
    def reason(self) -> str:
        """Why, in numbers."""

    @property
    def severity(self) -> float:
        """Largest error over the allowed one."""

    @property
    def rank(self) -> tuple[int, float]:
        """The greater, the graver among verdicts of one status."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""


WholeT = TypeVar("WholeT", bound=WholeVerdict)


@dataclass(frozen=True)
class LogitVerdict:
    """Teacher-forced logits of a target against the reference's.

    Attributes
    ----------
    status
        ``pass``, ``degraded``, ``fail``; ``not run`` if there was no position.
    positions
        How many positions were compared.
    allowed
        The largest error that passes.
    max_absolute, rms_absolute
        Error over all positions and the vocabulary.
    max_kl, mean_kl
        Kullback-Leibler divergence of the target's distribution from the reference's, in nats.
    top1_agreement
        Share of positions with the same argmax.
    decided
        Positions where the reference's margin exceeds twice the allowed error, so that the
        argmax must be the same.
    parted
        Decided positions where it differs.
    worst_position
        The first parted position, else that of the largest error.
    reason
        Why, in numbers.
    """

    status: Status
    positions: int
    allowed: AllowedLogitError
    max_absolute: float
    rms_absolute: float
    max_kl: float
    mean_kl: float
    top1_agreement: float
    decided: int
    parted: int
    worst_position: int
    reason: str

    @property
    def severity(self) -> float:
        """Largest error over the allowed one; 0 for equal logits, even if they are all zero."""
        return self.max_absolute / max(self.allowed.value, 1e-300)

    @property
    def rank(self) -> tuple[int, float]:
        """Positions where another token wins, then the largest error."""
        return self.parted, self.severity

    def to_json(self) -> dict[str, Any]:
        """Plain data; NaN and Inf become text."""
        plain: dict[str, Any] = to_strict(asdict(self))
        return plain


@dataclass(frozen=True)
class TokenComparison:
    """Free-running tokens of a target beside the reference's.

    Attributes
    ----------
    compared
        Tokens both produced.
    first_parting
        Position of the first difference; None if all are equal.
    reference_token, target_token
        The two tokens there.
    margin
        By how much the reference prefers its own token to the target's there, in logits; None if
        the logits were not kept.
    text
        The same in words.
    """

    compared: int
    first_parting: int | None
    reference_token: int | None
    target_token: int | None
    margin: float | None
    text: str


def allowed_logit_error(
    dtype: str, reference_logits: NDArray[Any], rooted_deviation: float
) -> AllowedLogitError:
    """The largest logit error of a correct implementation of a model.

    Parameters
    ----------
    dtype
        The model's floating-point dtype.
    reference_logits
        Any logits of the reference; their largest magnitude gives the scale.
    rooted_deviation
        Largest absolute difference between the reference's logits and PyTorch's, measured when the
        reference was rooted. Both round in `dtype` and both are right, so their difference accounts
        for the depth, width and conditioning of this model.

    Raises
    ------
    InputError
        If `rooted_deviation` is negative or not finite.
    """
    if not 0 <= rooted_deviation < np.inf:
        raise InputError(
            f"rooted_deviation: expected a finite number from 0, got {rooted_deviation}; "
            "root the reference against PyTorch first"
        )
    finite = np.abs(reference_logits[np.isfinite(reference_logits)]).astype(np.float64)
    largest = float(finite.max(initial=0.0))
    from_rooting = ROOTED_FACTOR * rooted_deviation
    floor = FLOOR_ULPS.get(dtype, FLOOR_ULPS["float32"])
    from_dtype = floor * float_format(dtype).epsilon * largest
    return AllowedLogitError(max(from_rooting, from_dtype), from_rooting, from_dtype)


def compare_logits(
    reference: NDArray[Any], target: NDArray[Any], allowed: AllowedLogitError
) -> LogitVerdict:
    """Compare logits at the same tokens.

    Parameters
    ----------
    reference, target
        Shape ``(..., vocabulary)``: one row per position, as numbers (widen bfloat16 first).
    allowed
        From :func:`allowed_logit_error`.

    Raises
    ------
    InputError
        If the shapes differ.
    """
    if reference.shape != target.shape or reference.ndim == 0:
        raise InputError(
            f"logits to compare have shapes {reference.shape} and {target.shape}; expected the "
            "same, (..., vocabulary)"
        )
    want = reference.reshape(-1, reference.shape[-1]).astype(np.float64)
    got = target.reshape(want.shape).astype(np.float64)
    if want.size == 0:
        return not_compared("no position was compared", allowed)
    with np.errstate(all="ignore"):
        error = np.abs(got - want)
        # Masked vocabulary is -Inf in both; any other Inf or NaN mismatch is infinitely wrong.
        error[want == got] = 0.0
        error[np.isnan(want) & np.isnan(got)] = 0.0
        error[np.isnan(error)] = np.inf
        largest = error.max(axis=1)
        winners = want.argmax(axis=1)
        same = winners == got.argmax(axis=1)
        decided = margins(want) > 2.0 * allowed.value
        parted = decided & ~same
        divergence = _divergence(want, got)
        rms = float(np.sqrt(np.mean(np.square(error))))
    worst = int(np.argmax(parted)) if parted.any() else int(np.argmax(largest))
    maximum = float(largest.max())
    status = _status(maximum, bool(parted.any()), allowed.value)
    return LogitVerdict(
        status=status,
        positions=len(want),
        allowed=allowed,
        max_absolute=maximum,
        rms_absolute=rms,
        max_kl=float(divergence.max()),
        mean_kl=float(divergence.mean()),
        top1_agreement=float(same.mean()),
        decided=int(decided.sum()),
        parted=int(parted.sum()),
        worst_position=worst,
        reason=_logit_reason(maximum, allowed, parted, decided, worst, len(want)),
    )


def not_compared(
    reason: str, allowed: AllowedLogitError = AllowedLogitError(0, 0, 0)
) -> LogitVerdict:
    """The verdict if nothing was run or there was nothing to compare."""
    return LogitVerdict("not run", 0, allowed, 0, 0, 0, 0, 1.0, 0, 0, 0, reason)


def margins(logits: Float64s) -> Float64s:
    """Distance between the best and second best logit per row; Inf if there is only one."""
    if logits.shape[-1] < 2:
        return np.full(logits.shape[:-1], np.inf)
    best = np.partition(logits, -2, axis=-1)[..., -2:]
    distance: Float64s = best[..., 1] - best[..., 0]
    # Two equal infinities, or a NaN, decide nothing.
    return np.where(np.isnan(distance), 0.0, distance)


def compare_tokens(
    reference: Sequence[int], target: Sequence[int], reference_logits: NDArray[Any] | None = None
) -> TokenComparison:
    """Find the first difference of two free-running token sequences.

    Parameters
    ----------
    reference, target
        Generated token ids.
    reference_logits
        Shape ``(tokens, vocabulary)``: the logits each reference token was chosen from.
    """
    compared = min(len(reference), len(target))
    for position in range(compared):
        ours, theirs = int(reference[position]), int(target[position])
        if ours == theirs:
            continue
        margin = None
        where = f"tokens part at {position + 1} of {compared}: {ours} here, {theirs} on the target"
        if reference_logits is not None:
            row = reference_logits[position].astype(np.float64)
            margin = float(row[ours] - row[theirs])
            where += f"; the reference's logits there differ by {margin:.3g}"
        return TokenComparison(compared, position, ours, theirs, margin, where)
    text = f"all {compared} tokens are equal"
    if len(reference) != len(target):
        text = f"the first {compared} tokens are equal; one side stopped there"
    return TokenComparison(compared, None, None, None, None, text)


def gravest(verdicts: Sequence[WholeT]) -> WholeT:
    """The gravest verdict of several cases; among equals, the one with the largest error.

    Raises
    ------
    InputError
        If `verdicts` is empty.
    """
    if not verdicts:
        raise InputError("no model-wise verdict to choose from: give at least one case")
    status = verdicts[0].status
    for verdict in verdicts:
        status = worse(status, verdict.status)
    candidates = [verdict for verdict in verdicts if verdict.status == status]
    return max(candidates, key=lambda verdict: verdict.rank)


def _divergence(want: Float64s, got: Float64s) -> Float64s:
    """Kullback-Leibler divergence per row, in nats; Inf if a row is not a distribution."""
    ours, theirs = _log_softmax(want), _log_softmax(got)
    weight = np.exp(ours)
    terms = np.where(weight > 0, weight * (ours - theirs), 0.0)
    total = terms.sum(axis=1)
    return np.where(np.isnan(total), np.inf, np.maximum(total, 0.0))


def _log_softmax(logits: Float64s) -> Float64s:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Float64s = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _status(maximum: float, parted: bool, allowed: float) -> Status:
    if parted or maximum > DEGRADED_FACTOR * allowed:
        return "fail"
    return "pass" if maximum <= allowed else "degraded"


def _logit_reason(
    maximum: float,
    allowed: AllowedLogitError,
    parted: NDArray[np.bool_],
    decided: NDArray[np.bool_],
    worst: int,
    positions: int,
) -> str:
    count = int(parted.sum())
    error = f"largest logit error {maximum:.3g}, allowed {allowed}"
    if count:
        return (
            f"another token wins at {count} of {int(decided.sum())} positions whose margin exceeds "
            f"twice the allowed error, first at position {worst}; {error}"
        )
    if maximum > allowed.value:
        return f"{error}, at position {worst} of {positions}"
    return f"{error}; the argmax is equal at all {int(decided.sum())} decided positions"
