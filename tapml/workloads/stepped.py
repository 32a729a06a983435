"""Decoders that read a prompt token by token: a decoder's prompts and logits, one entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tapml.execute.arrays import Array
from tapml.execute.generate import check_lengths
from tapml.models.inputs import DECODE
from tapml.models.prompts import Prompt
from tapml.workloads.decoder import DecoderWorkload


class SteppedWorkload(DecoderWorkload):
    """Every token goes through decode."""

    def check(self, cases: Sequence[Prompt], steps: int, *, every_entry: bool = False) -> None:
        """Prompts and new tokens fit the context; any prompt runs every entry."""
        for prompt in cases:
            check_lengths(self.model, len(prompt.token_ids), steps)

    def expected(
        self, case: Prompt, steps: int
    ) -> Iterator[tuple[str, range, Mapping[str, Array]]]:
        """Decode, for the prompt's tokens and the new ones but the last."""
        runs = range(len(case.token_ids) + steps - 1)
        yield DECODE, runs, self.model.prepare_decode(case.token_ids[0], 0)

    def lengths(self, cases: Sequence[Prompt]) -> Iterator[tuple[str, dict[str, Array]]]:
        """Decode."""
        yield DECODE, self.model.prepare_decode(cases[0].token_ids[0], 0)


WORKLOAD = SteppedWorkload
