"""A text of a session that tells a device which computes something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tapml.package.sample import LONGEST_PROMPT, TOKENS, Sample


def test_the_shortest_prompt_is_taken_with_its_first_tokens() -> None:
    texts = [((1, 2, 3), (4, 5)), ((7,), tuple(range(20))), ((8, 9), (1,))]
    assert Sample.of(texts) == Sample((7,), tuple(range(TOKENS)))
    # One that nothing was written behind says nothing, however short it is.
    assert Sample.of([((6,), ()), *texts[:1]]) == Sample((1, 2, 3), (4, 5))


@pytest.mark.parametrize("texts", [[], [((), (1,))], [((1,), ())], [((1,) * 300, (2,))]])
def test_without_a_short_prompt_there_is_none(
    texts: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    assert Sample.of(texts) is None


def test_it_survives_json() -> None:
    sample = Sample((1, 2), (3, 4, 5))
    assert msgspec.convert(msgspec.to_builtins(sample), Sample) == sample


@pytest.mark.parametrize(
    "data",
    [
        7,
        {},
        {"prompt": [1]},
        {"prompt": [], "tokens": [1]},
        {"prompt": [1], "tokens": []},
        {"prompt": [True], "tokens": [1]},
        {"prompt": [1], "tokens": [-1]},
        {"prompt": [1], "tokens": ["1"]},
        {"prompt": [1], "tokens": [1 << 31]},
        {"prompt": [1] * (LONGEST_PROMPT + 1), "tokens": [1]},
        {"prompt": [1], "tokens": [1] * (TOKENS + 1)},
    ],
)
def test_what_is_no_sample_is_refused(data: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(data, Sample)


def test_equal_tokens_and_the_first_other_one_are_told() -> None:
    sample = Sample((1, 2), (3, 4, 5))
    asked: list[tuple[tuple[int, ...], int]] = []

    def writes(*tokens: int) -> Any:
        def generate(prompt: Sequence[int], count: int) -> Iterator[int]:
            asked.append((tuple(prompt), count))
            return iter(tokens)

        return generate

    assert "first tokens of a text of its session (3)" in sample.compared(writes(3, 4, 5))
    assert asked == [((1, 2), 3)]
    assert "token 2 of a text of its session is 9 here and was 4" in sample.compared(writes(3, 9))
    # It ended with an end token, behind which the session went on.
    assert "(2) come out as they did" in sample.compared(writes(3, 4))
