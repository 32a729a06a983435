"""Encoder-decoders as workloads: a source once, steps on its mask, logits of the decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tapml.execute.arrays import Array
from tapml.models.stored import StoredEncoderDecoder, read_stored
from tapml.workloads import workload_of
from tapml.workloads.encoder_decoder import EncoderDecoderWorkload, Source
from tapml_targets.errors import InputError

TEXT = StoredEncoderDecoder(
    name="t",
    dtype="float32",
    context_length=8,
    vocabulary=10,
    start_tokens=(0, 4),
    end_tokens=frozenset({9}),
    padding=7,
    features=None,
    weights_hash="ab",
)
SPEECH = replace(TEXT, features=(2, 6))


class Counting:
    """Chooses the sum of the source's first token and the token it is given."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.ran: list[str] = []
        self.first = -1

    def reset(self) -> None:
        """The source is forgotten."""
        self.first = -1

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """States, or logits with their largest at the sum."""
        self.ran.append(entry)
        if entry == "encode":
            self.first = int(inputs["source_ids"][0, 0]) if "source_ids" in inputs else 1
            return {"states": np.zeros((1, 8, 4), np.float32)}
        assert self.first >= 0
        logits = np.zeros((1, 1, 10), np.float32)
        logits[0, 0, (int(inputs["token_ids"][0, 0]) + self.first) % 10] = self.scale
        return {"logits": logits}


@pytest.mark.parametrize("stored", [TEXT, SPEECH])
def test_it_survives_json_and_finds_its_workload(stored: StoredEncoderDecoder) -> None:
    assert read_stored(json.loads(json.dumps(stored.to_json()))) == stored
    assert isinstance(workload_of(stored), EncoderDecoderWorkload)
    assert stored.positions == (8 if stored is TEXT else 3)


def test_the_start_goes_through_decode_and_an_end_token_ends() -> None:
    runner = Counting()
    workload = EncoderDecoderWorkload(TEXT)
    steps = list(workload.run(runner, Source((1, 2)), 7))
    # The start 0 and 4, then 5, 6, 7, 8, and 9 is the end.
    assert runner.ran == ["encode"] + ["decode"] * 6
    assert steps == list(range(7))
    (logits,) = workload.call(runner, Source((1, 2)))
    assert workload.by_name([logits])["tokens"].tolist() == [5, 6, 7, 8, 9]
    (logits,) = workload.call(runner, Source((1, 2)), 2)
    assert workload.by_name([logits])["tokens"].tolist() == [5, 6]
    expected = list(workload.expected(Source((1, 2)), 7))
    assert [(entry, len(steps)) for entry, steps, _ in expected] == [("encode", 1), ("decode", 8)]


def test_the_source_is_masked_in_every_step() -> None:
    source = TEXT.prepare_source((5, 6))
    assert source["source_ids"].tolist() == [[5, 6, 7, 7, 7, 7, 7, 7]]
    step = TEXT.prepare_step(source, 3, 1)
    assert (step["source_mask"][0, 0, 0] == 0).tolist() == [True] * 2 + [False] * 6
    features = SPEECH.prepare_source(np.ones((2, 6)))
    assert "source_mask" not in SPEECH.prepare_step(features, 3, 1)


@pytest.mark.parametrize("case", [Source((1, 2), text="a b"), np.ones((2, 6))])
def test_logits_are_compared_on_the_tokens_of_the_reference(case: object) -> None:
    workload = EncoderDecoderWorkload(TEXT if isinstance(case, Source) else SPEECH)
    source = workload.as_case(case)
    packed = json.loads(json.dumps(workload.pack_case(source)))
    assert workload.unpack_case(packed) == source
    trace = workload.trace(Counting(), source, 3, 1e-7)
    assert trace.choices == (5, 6, 7)
    assert trace.outputs.shape == (4, 10)
    workload.check_trace(trace)
    assert workload.compare(Counting(), trace).status == "pass"
    assert workload.compare(Counting(1.01), trace).status == "fail"
    assert workload.result(Counting(), trace, str).equal
    with pytest.raises(InputError, match="no floating-point logits"):
        workload.check_trace(replace(trace, outputs=trace.outputs[1:]))


@pytest.mark.parametrize(
    ("stored", "source", "message"),
    [
        (TEXT, (), "a source of 0 tokens for t: expected 1 to 8"),
        (TEXT, (1,) * 9, "a source of 9 tokens"),
        (TEXT, (11,), "token 11 is not in the vocabulary"),
        (SPEECH, np.ones((2, 5)), r"\[2, 5\] for t: expected features \[2, 6\]"),
    ],
)
def test_sources_that_do_not_fit_are_refused(
    stored: StoredEncoderDecoder, source: object, message: str
) -> None:
    workload = EncoderDecoderWorkload(stored)
    with pytest.raises(InputError, match=message):
        workload.inputs(workload.as_case(source))


def test_more_tokens_than_rows_are_refused() -> None:
    with pytest.raises(InputError, match="8 new tokens for t: expected 1 to 7"):
        EncoderDecoderWorkload(TEXT).check([Source((1,))], 8)
