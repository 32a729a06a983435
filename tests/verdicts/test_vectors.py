"""Vectors are compared as wholes: an element near zero decides nothing, a direction does."""

from __future__ import annotations

import numpy as np
import pytest

from tapml.verdicts.modelwise import AllowedLogitError, allowed_logit_error
from tapml.verdicts.vectors import compare_vectors
from tapml_targets.errors import InputError

ALLOWED = AllowedLogitError(1e-5, 1e-5, 1e-6)
VECTORS = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)


def test_equal_vectors_pass() -> None:
    verdict = compare_vectors(VECTORS, VECTORS, ALLOWED)
    assert (verdict.status, verdict.severity, verdict.vectors) == ("pass", 0, 5)
    assert verdict.min_cosine == pytest.approx(1)


@pytest.mark.parametrize(("error", "status"), [(5e-6, "pass"), (3e-5, "degraded"), (1e-4, "fail")])
def test_the_root_mean_square_of_a_vector_decides(error: float, status: str) -> None:
    moved = VECTORS.copy()
    moved[3] += error
    verdict = compare_vectors(VECTORS, moved, ALLOWED)
    assert (verdict.status, verdict.worst) == (status, 3)
    assert verdict.max_rms == pytest.approx(error, rel=0.05)


def test_one_element_near_zero_decides_nothing() -> None:
    reference = VECTORS.copy()
    reference[0, 0] = 1e-9
    target = reference.copy()
    target[0, 0] = 1e-6
    assert compare_vectors(reference, target, ALLOWED).status == "pass"


def test_a_turned_vector_fails_and_shows_in_cosine_and_similarities() -> None:
    turned = VECTORS.copy()
    turned[1] = -turned[1]
    verdict = compare_vectors(VECTORS, turned, ALLOWED)
    assert verdict.status == "fail"
    assert verdict.min_cosine == pytest.approx(-1)
    assert verdict.max_similarity > 0.1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_fails(value: float) -> None:
    broken = VECTORS.copy()
    broken[2, 2] = value
    verdict = compare_vectors(VECTORS, broken, ALLOWED)
    assert (verdict.status, verdict.worst) == ("fail", 2)
    assert "inf" in str(verdict.to_json()["max_rms"])


def test_the_allowed_error_comes_from_rooting() -> None:
    assert allowed_logit_error("float32", VECTORS, 1e-6).value == pytest.approx(1.6e-5)


def test_vectors_of_other_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="shapes"):
        compare_vectors(VECTORS, VECTORS[:4], ALLOWED)
