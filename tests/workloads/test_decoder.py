"""Decoders as workloads: what is carved of a prompt."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tapml.execute.arrays import Array
from tapml.models.prompts import Prompt
from tapml.models.stored import StoredDecoder
from tapml.workloads.decoder import DecoderWorkload

END = 9


class Ending:
    """Chooses the end token, whatever it is given."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def reset(self) -> None:
        """There is no state."""

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Logits with their largest at the end token."""
        self.ran.append(entry)
        logits = np.zeros((*inputs["token_ids"].shape, 10), np.float32)
        logits[..., END] = 1.0
        return {"logits": logits}


def test_decode_is_carved_of_a_prompt_that_is_complete() -> None:
    stored = StoredDecoder(
        name="t",
        dtype="float32",
        context_length=16,
        vocabulary=10,
        end_tokens=frozenset({END}),
        weights_hash="ab",
    )
    runner = Ending()
    assert list(DecoderWorkload(stored).run(runner, Prompt((1, 2, 3)), 3)) == [0, 1, 2]
    assert runner.ran == ["prefill", "decode", "decode"]
