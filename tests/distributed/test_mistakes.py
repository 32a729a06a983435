"""Which combination of slice gradients a wrong gradient is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.distributed.mistakes import Floats, Observed, Slices, find_mistake

WORLD = 4


def slices_of(seed: int, samples: tuple[int, ...] = (2, 2, 2, 2)) -> Slices:
    generator = np.random.default_rng(seed)
    gradients = [{"weight": generator.normal(size=(5, 3))} for _ in samples]
    return Slices(gradients, samples, 1e-8)


def observed(slices: Slices, weights: list[tuple[float, ...]], expected: Floats) -> Observed:
    held = {
        rank: (slices.combine("weight", each, expected), ()) for rank, each in enumerate(weights)
    }
    return Observed("weight", expected, held)


def mean(slices: Slices) -> Floats:
    return slices.combine("weight", (1 / WORLD,) * WORLD, np.zeros((5, 3)))


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([(1.0,) * 4] * 4, "summed over the ranks"),
        ([(1 / 16,) * 4] * 4, "divided by the number of ranks twice"),
        ([tuple(float(a == b) for a in range(4)) for b in range(4)], "each rank keeps its own"),
        ([(0.0, 1.0, 0.0, 0.0)] * 4, "the gradient of rank 1 alone"),
        ([(0.5, 0.5, 0, 0)] * 2 + [(0, 0, 0.5, 0.5)] * 2, "within groups of ranks: (0, 1) and"),
        ([(1 / 3, 1 / 3, 1 / 3, 0.0)] * 4, "the gradient of rank 3 is left out"),
        ([(0.125,) * 4] * 4, "0.5 times their mean"),
        ([tuple((a == b) / 4 for a in range(4)) for b in range(4)], "keeps its own, times 0.25, 0"),
        ([(b / 8,) * 4 for b in (1, 2, 3, 5)], "by a factor of its own (0.5, 1, 1.5, 2.5)"),
        ([(0.1, 0.2, 0.25, 0.05)] * 4, "a factor of its own before the reduction (0.4, 0.8, 1,"),
    ],
)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_a_combination_is_named(weights: list[tuple[float, ...]], text: str, seed: int) -> None:
    slices = slices_of(seed)

    found = find_mistake([observed(slices, weights, mean(slices))], slices)

    assert found is not None
    assert text in found.text


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_why_the_mean_is_wrong_is_named(seed: int) -> None:
    slices = slices_of(seed, samples=(1, 2, 2, 3))
    average = [(1 / WORLD,) * WORLD] * WORLD
    generator = np.random.default_rng(seed + 1)
    rights: dict[str, Floats] = {
        "the loss is a sum": mean(slices) * WORLD,
        "different numbers of samples": slices.combine(
            "weight", (1 / 8, 2 / 8, 2 / 8, 3 / 8), np.zeros((5, 3))
        ),
        "weighs with 0.1, 0.2, 0.3, 0.4": slices.combine(
            "weight", (0.1, 0.2, 0.3, 0.4), np.zeros((5, 3))
        ),
        "clipped by value": np.clip(generator.normal(size=(5, 3)), -0.1, 0.1),
        "samples see each other": generator.normal(size=(5, 3)),
    }
    for text, right in rights.items():
        found = find_mistake([observed(slices, average, right)], slices)
        assert found is not None
        assert text in found.text


def test_what_one_device_clips_as_well_is_compared_with_that() -> None:
    slices = slices_of(3)

    found = find_mistake([observed(slices, [(0.15,) * 4] * 4, mean(slices) * 0.3)], slices)

    assert found is not None
    assert "2 times one device's, which are 0.3 times their mean as well" in found.text


def test_shards_exchanged_and_old_gradients_are_named() -> None:
    slices = slices_of(0)
    right, earlier = mean(slices), np.ones((5, 3))
    exchanged = Observed("weight", right, {0: (right[3:], (0, 0)), 1: (right[:2], (3, 0))})
    stale = Observed("weight", right, {0: (earlier, ())}, earlier)
    absent = Observed("weight", right, {0: (np.zeros((5, 3)), ())})

    texts = [getattr(find_mistake([each], slices), "text", "") for each in (stale, absent)]
    assert "that of the step before" in texts[0]
    assert "zero or missing" in texts[1]
    found = find_mistake([exchanged], slices)
    assert found is not None
    assert "shards of each other" in found.text


def test_values_that_are_not_finite_are_no_combination() -> None:
    slices = slices_of(1)
    held = {0: (np.full((5, 3), np.nan), ())}

    found = find_mistake([Observed("weight", mean(slices), held)], slices)

    assert found is not None
    assert found.text == "values are NaN or infinite on the ranks alone"


def test_noise_is_no_mistake_that_is_known() -> None:
    slices = slices_of(0)
    noise = np.random.default_rng(9).normal(size=(5, 3))

    assert find_mistake([Observed("weight", mean(slices), {0: (noise, ())})], slices) is None


def test_a_mistake_of_some_tensors_says_of_how_many() -> None:
    slices = slices_of(0)
    both = {"bias": np.ones(3), "weight": np.ones((5, 3))}
    slices = Slices([{**each, "bias": both["bias"]} for each in slices.gradients], (2,) * 4, 1e-8)
    wrong = [
        observed(slices, [(1.0,) * 4] * 4, mean(slices)),
        Observed("bias", np.ones(3), {0: (np.array([1.0, 5.0, 7.0]), ())}),
    ]

    found = find_mistake(wrong, slices)

    assert found is not None
    assert found.text.endswith("(1 of 2 wrong gradients)")


def test_a_rank_without_samples_is_no_sum() -> None:
    slices = slices_of(0, (8, 0))
    slices.gradients[1]["weight"][:] = 0.0
    one_device = slices.gradients[0]["weight"]

    found = find_mistake([observed(slices, [(0.5, 0.5)] * 2, one_device)], slices)

    assert found is not None
    assert "ranks that have different numbers of samples" in found.text


def test_a_factor_of_ranks_that_have_the_same_samples_is_named() -> None:
    """In a pipeline each has other parameters, and loss() is called for each micro-batch."""
    weight = slices_of(0).gradients[0]["weight"]
    slices = Slices([{"weight": weight}] * 2, (8, 8), 1e-8)

    found = find_mistake([Observed("weight", weight, {1: (weight / 4, ())})], slices)

    assert found is not None
    assert "gradients are 0.25 times one device's, on ranks that have the same" in found.text
    assert "a mean over samples from loss()" in found.remedy
