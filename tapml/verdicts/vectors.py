"""Model-wise verdicts on vectors: the embeddings of tokens and sentences.

An element near zero says nothing about a vector, so the error of a vector is that of all its
elements together, its root mean square. Users compare directions, so cosines and similarities are
reported beside it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.durable.strict_json import to_strict
from tapml.verdicts.modelwise import DEGRADED_FACTOR, AllowedLogitError
from tapml.verdicts.verdict import Status
from tapml_targets.errors import InputError

_MOST_SIMILARITIES: Final = 256
"""Vectors whose similarities to each other are compared."""


@dataclass(frozen=True)
class VectorVerdict:
    """Vectors of a target against the reference's.

    Attributes
    ----------
    status
        ``pass``, ``degraded`` or ``fail``.
    vectors
        How many were compared.
    allowed
        The largest root mean square that passes.
    max_rms
        Largest root mean square of a vector's error.
    max_relative
        Largest length of an error, relative to its vector.
    min_cosine
        Smallest cosine between a vector and the reference's.
    max_similarity
        Largest change of the cosine between two vectors of the case.
    worst
        The vector with the largest error.
    reason
        Why, in numbers.
    """

    status: Status
    vectors: int
    allowed: AllowedLogitError
    max_rms: float
    max_relative: float
    min_cosine: float
    max_similarity: float
    worst: int
    reason: str

    @property
    def severity(self) -> float:
        """Largest error over the allowed one."""
        return self.max_rms / max(self.allowed.value, 1e-300)

    @property
    def rank(self) -> tuple[int, float]:
        """By the largest error."""
        return 0, self.severity

    def to_json(self) -> dict[str, Any]:
        """Plain data; NaN and Inf become text."""
        plain: dict[str, Any] = to_strict(asdict(self))
        return plain


def compare_vectors(
    reference: NDArray[Any], target: NDArray[Any], allowed: AllowedLogitError
) -> VectorVerdict:
    """Compare vectors ``[vectors, width]``, at least one.

    Raises
    ------
    InputError
        If the shapes differ or there is no vector.
    """
    if reference.shape != target.shape or reference.ndim != 2 or not reference.size:
        raise InputError(
            f"vectors to compare have shapes {reference.shape} and {target.shape}: expected the "
            "same, [vectors, width]"
        )
    want, got = reference.astype(np.float64), target.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.where(want == got, 0.0, np.abs(got - want))
        # NaN, and Inf where the reference has a number, are infinitely wrong.
        error[np.isnan(error)] = np.inf
        rms = np.sqrt(np.mean(np.square(error), axis=1))
        length = np.linalg.norm(want, axis=1)
        relative = np.linalg.norm(error, axis=1) / np.maximum(length, 1e-300)
        ours, theirs = _directions(want), _directions(got)
        cosine = np.sum(ours * theirs, axis=1)
        some_ours, some_theirs = ours[:_MOST_SIMILARITIES], theirs[:_MOST_SIMILARITIES]
        changes = np.abs(some_theirs @ some_theirs.T - some_ours @ some_ours.T)
    worst, maximum = int(rms.argmax()), float(rms.max())
    status: Status = "pass" if maximum <= allowed.value else "degraded"
    if not maximum <= DEGRADED_FACTOR * allowed.value:
        status = "fail"
    similarity = float(np.nan_to_num(changes, nan=2.0).max())
    return VectorVerdict(
        status=status,
        vectors=len(want),
        allowed=allowed,
        max_rms=maximum,
        max_relative=float(relative.max()),
        min_cosine=float(np.nan_to_num(cosine, nan=-1.0).min()),
        max_similarity=similarity,
        worst=worst,
        reason=(
            f"largest error of a vector {maximum:.3g} (root mean square), allowed {allowed}, at "
            f"vector {worst} of {len(want)}; {relative.max():.3g} of its length at most, and "
            f"similarities change by {similarity:.3g} at most"
        ),
    )


def _directions(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions: NDArray[np.float64] = vectors / np.maximum(lengths, 1e-300)
    return directions
