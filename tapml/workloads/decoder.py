"""Decoders of text: prompts, prefill and decode, logits with the reference's tokens fed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from tapml.execute.arrays import Array
from tapml.execute.generate import check_lengths, greedy
from tapml.models.inputs import DECODE, PREFILL, entry_for
from tapml.models.prompts import (
    Prompt,
    calibration_prompts,
    prompt_from_text,
    prompt_from_tokens,
)
from tapml.verdicts.modelwise import (
    LogitVerdict,
    allowed_logit_error,
    compare_logits,
    compare_tokens,
)
from tapml.workloads.trace import CaseResult, CaseTrace, Runner
from tapml.workloads.workload import Workload
from tapml_targets.errors import InputError

_Tokens: TypeAlias = Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]


class _KeptPrompt(msgspec.Struct):
    token_ids: _Tokens
    text: str | None


class DecoderWorkload(Workload[Prompt]):
    """Teacher-forced logits; the tokens of a free run are only reported."""

    subject = "logits"
    generates = True

    def cases(
        self, loaded: Any, texts: Sequence[str], tokens: Sequence[str], count: int
    ) -> tuple[Prompt, ...]:
        """Prompts; see :meth:`Workload.cases`."""
        given = (
            *(prompt_from_text(loaded, text) for text in texts),
            *(prompt_from_tokens(loaded, ids) for ids in tokens),
        )
        return given or calibration_prompts(loaded, count)

    def as_case(self, given: Any) -> Prompt:
        """A prompt, from token ids as well."""
        if isinstance(given, Sequence):
            return Prompt(tuple(int(token) for token in given))
        prompt: Prompt = given
        return prompt

    def check(self, cases: Sequence[Prompt], steps: int, *, every_entry: bool = False) -> None:
        """Prompts and new tokens fit the context; see :meth:`Workload.check`."""
        for prompt in cases:
            check_lengths(self.model, len(prompt.token_ids), steps)
        if not every_entry:
            return
        entries = [entry_for(len(prompt.token_ids)) for prompt in cases]
        if all(entry == DECODE for entry in entries):
            raise InputError(
                "every prompt has a single token, so prefill would never run and its operators "
                "would have no test: give at least one prompt of two tokens or more"
            )
        if steps == 1 and all(entry == PREFILL for entry in entries):
            raise InputError(
                "--new-tokens 1: decode would never run and its operators would have no test; ask "
                "for two or more"
            )

    def run(self, runner: Runner, case: Prompt, steps: int) -> Iterator[int]:
        """Generate greedily, past an end token too: if the first is one, decode has to run."""
        for each in greedy(self.model, runner, case.token_ids, steps, stop_at_end=False):
            yield each.step

    def expected(
        self, case: Prompt, steps: int
    ) -> Iterator[tuple[str, range, Mapping[str, Array]]]:
        """Prefill, unless the prompt is one token, and decode."""
        if len(case.token_ids) > 1:
            yield PREFILL, range(1), self.model.prepare_prefill(case.token_ids)
        yield DECODE, range(1, steps), self.model.prepare_decode(case.token_ids[0], 0)

    def lengths(self, cases: Sequence[Prompt]) -> Iterator[tuple[str, dict[str, Array]]]:
        """Prefill for each length of a prompt, and decode."""
        lengths = {len(case.token_ids): case for case in cases}
        for length, prompt in lengths.items():
            if length > 1:
                yield PREFILL, self.model.prepare_prefill(prompt.token_ids)
        yield DECODE, self.model.prepare_decode(cases[0].token_ids[0], 0)

    def trace(self, runner: Runner, case: Prompt, steps: int, rooted_deviation: float) -> CaseTrace:
        """Generate, then record the logits teacher-forced on those tokens."""
        generated = greedy(self.model, runner, case.token_ids, steps, stop_at_end=False)
        tokens = tuple(step.token for step in generated)
        logits = self.forced_logits(runner, case, tokens)
        allowed = allowed_logit_error(self.model.dtype, logits, rooted_deviation)
        return CaseTrace(case, tokens, logits, allowed)

    def compare(self, runner: Runner, trace: CaseTrace) -> LogitVerdict:
        """Logits of a runner on the reference's tokens."""
        logits = self.forced_logits(runner, trace.case, trace.choices)
        return compare_logits(trace.outputs, logits, trace.allowed)

    def forced_logits(self, runner: Runner, prompt: Prompt, tokens: Sequence[int]) -> Array:
        """Logits ``[positions, vocabulary]`` with the reference's tokens fed in."""
        runner.reset()
        ids = prompt.token_ids
        parts = [_logits(runner.run(*each)) for each in self.model.prompt_runs(ids)]
        for index, token in enumerate(tokens[:-1]):
            inputs = self.model.prepare_decode(token, len(ids) + index)
            parts.append(_logits(runner.run(DECODE, inputs)))
        logits: Array = np.concatenate(parts)
        return logits

    def result(
        self, runner: Runner, trace: CaseTrace, text_of: Callable[[Sequence[int]], str]
    ) -> CaseResult:
        """Free-running tokens beside the reference's."""
        ids, count = trace.case.token_ids, len(trace.choices)
        steps = greedy(self.model, runner, ids, count, stop_at_end=False)
        tokens = tuple(step.token for step in steps)
        start = len(ids) - 1
        comparison = compare_tokens(trace.choices, tokens, trace.outputs[start : start + count])
        return CaseResult(
            prompt=text_of(ids),
            text=text_of(tokens),
            tokens=tokens,
            verdict=comparison.text,
            equal=comparison.first_parting is None,
        )

    def agreement(self, results: Sequence[CaseResult]) -> str:
        """Of tokens; see :meth:`Workload.agreement`."""
        equal = sum(each.equal for each in results)
        return f"tokens equal the reference's for {equal} of {len(results)} prompts"

    def texts(self, case: Prompt) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The prompt."""
        return () if case.text is None else ((case.text, case.token_ids),)

    def argument(self, *, takes_text: bool) -> str:
        """A prompt."""
        return '--prompt "The beginning of a text"' if takes_text else '--tokens "1 2 3"'

    def pack_case(self, case: Prompt) -> dict[str, Any]:
        """Tokens and text."""
        return {"token_ids": list(case.token_ids), "text": case.text}

    def unpack_case(self, data: Mapping[str, Any]) -> Prompt:
        """See :meth:`Workload.unpack_case`."""
        try:
            kept = msgspec.convert(dict(data), _KeptPrompt)
        except msgspec.ValidationError as error:
            raise InputError(f"a stored prompt: {error}") from error
        self.model.check_tokens(kept.token_ids)
        return Prompt(kept.token_ids, kept.text)

    def check_trace(self, trace: CaseTrace) -> None:
        """Tokens are of the vocabulary, and logits there for each position."""
        if not trace.choices:
            raise InputError("a stored run has no token")
        self.model.check_tokens(trace.choices)
        positions = len(trace.case.token_ids) + len(trace.choices) - 1
        shape = (positions, self.model.vocabulary)
        if trace.outputs.shape != shape or trace.outputs.dtype.kind != "f":
            raise InputError(f"a stored run has no floating-point logits {shape}")


def _logits(outputs: dict[str, Array]) -> Array:
    """A copy of the first output, ``[positions, vocabulary]``: a runner may reuse its memory."""
    return np.array(next(iter(outputs.values()))[0])


WORKLOAD = DecoderWorkload
