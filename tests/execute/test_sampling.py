"""Tokens are drawn as temperature, nucleus and seed say, and greedily where nothing is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tapml.execute.sampling import GREEDY, Sampling
from tapml_targets.errors import InputError

LOGITS = np.log(np.array([0.1, 0.5, 0.05, 0.3, 0.05], np.float32))


def shares(sampling: Sampling, draws: int = 4000) -> np.ndarray:
    choose = sampling.chooser()
    counts = np.bincount([choose(LOGITS) for _ in range(draws)], minlength=len(LOGITS))
    return np.asarray(counts / draws)


def test_without_a_temperature_the_largest_is_taken() -> None:
    assert GREEDY.chooser()(LOGITS) == 1
    assert GREEDY.chooser()(np.array([2.0, 3.0, 3.0])) == 1


def test_tokens_come_as_often_as_they_are_probable() -> None:
    found = shares(Sampling(temperature=1.0, seed=3))
    assert np.abs(found - np.exp(LOGITS)).max() < 0.03


def test_a_temperature_sharpens_or_flattens() -> None:
    for temperature in (0.5, 2.0):
        weights = np.exp(LOGITS.astype(np.float64) / temperature)
        found = shares(Sampling(temperature, seed=3))
        assert np.abs(found - weights / weights.sum()).max() < 0.03


def test_the_nucleus_is_the_fewest_tokens_that_have_the_share() -> None:
    # 0.5 + 0.3 reaches 0.8 and more than 0.7; the third is needed for 0.85.
    assert set(np.flatnonzero(shares(Sampling(1.0, 0.7, seed=1)))) == {1, 3}
    assert set(np.flatnonzero(shares(Sampling(1.0, 0.85, seed=1)))) == {0, 1, 3}
    assert set(np.flatnonzero(shares(Sampling(1.0, 0.01, seed=1)))) == {1}
    two = shares(Sampling(1.0, 0.7, seed=1))
    assert abs(two[1] - 0.5 / 0.8) < 0.03


def test_only_the_k_most_probable_are_drawn() -> None:
    assert set(np.flatnonzero(shares(Sampling(1.0, seed=1, top_k=2)))) == {1, 3}
    assert set(np.flatnonzero(shares(Sampling(1.0, 0.7, seed=1, top_k=3)))) == {1, 3}


def test_penalties_and_a_bias_move_the_choice() -> None:
    # 0.5, 0.3, 0.1: a step of log(5 / 3) = 0.51 to the second, of log 5 = 1.61 to the third.
    choose = Sampling(presence_penalty=0.6).chooser()
    assert [choose(LOGITS) for _ in range(3)] == [1, 3, 1]
    choose = Sampling(frequency_penalty=0.6).chooser()
    assert [choose(LOGITS) for _ in range(4)] == [1, 3, 1, 3]
    assert Sampling(bias=((2, 3.0),)).chooser()(LOGITS) == 2
    with pytest.raises(InputError, match="token 7 is not in the vocabulary of 5"):
        Sampling(bias=((7, 1.0),)).check_bias(len(LOGITS))
    refused: tuple[dict[str, Any], ...] = (
        {"presence_penalty": 2.5},
        {"top_k": -1},
        {"bias": ((1, 101.0),)},
    )
    for wrong in refused:
        with pytest.raises(InputError, match="expected"):
            Sampling(**wrong)


def test_a_seed_repeats_a_text_and_another_one_does_not() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 131))

    def text(seed: int | None) -> list[int]:
        choose = Sampling(1.0, 0.9, seed).chooser()
        return [choose(row) for row in rows]

    assert text(7) == text(7)
    assert text(7) != text(8)
    assert text(None) != text(None)


@pytest.mark.parametrize(
    ("temperature", "top_p", "seed", "said"),
    [
        (-1.0, 1.0, None, "temperature: expected 0 to 100, got -1.0"),
        (float("nan"), 1.0, None, "temperature: expected 0 to 100, got nan"),
        (1.0, 0.0, None, "top_p: expected more than 0"),
        (1.0, 1.5, None, "top_p: expected more than 0"),
        (1.0, 1.0, -1, "seed: expected 0 to"),
    ],
)
def test_values_out_of_range_are_refused(
    temperature: float, top_p: float, seed: int | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        Sampling(temperature, top_p, seed)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_is_drawn_from_what_is_no_number(bad: float) -> None:
    with pytest.raises(InputError, match="no numbers"):
        Sampling(1.0, seed=1).chooser()(np.array([0.0, bad, 1.0], np.float32))
