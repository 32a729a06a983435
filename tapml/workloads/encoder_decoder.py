"""Encoder-decoders: a source is read once, and logits are compared on the reference's tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from tapml.execute.arrays import Array
from tapml.execute.generate import DECODE, NEW_TOKENS
from tapml.models.prompts import GENERAL
from tapml.models.stored import ENCODE
from tapml.verdicts.modelwise import (
    LogitVerdict,
    allowed_logit_error,
    compare_logits,
    compare_tokens,
)
from tapml.workloads.encoder import numbers
from tapml.workloads.module import Numbers
from tapml.workloads.one_call import OneCall
from tapml.workloads.trace import CaseResult, CaseTrace, Runner
from tapml_targets.errors import InputError

_Tokens: TypeAlias = Annotated[tuple[int, ...], msgspec.Meta(max_length=1 << 20)]
_SHARES = (0.6, 1.0, 0.3, 0.8)


@dataclass(frozen=True)
class Source:
    """What the encoder reads: the tokens of a text, or features ``[bins, frames]``."""

    token_ids: _Tokens = ()
    features: Numbers | None = None
    text: str | None = None

    @property
    def plain(self) -> tuple[int, ...] | Array:
        """The tokens, or the features."""
        return self.token_ids if self.features is None else self.features.array


class EncoderDecoderWorkload(OneCall[Source]):
    """Teacher-forced logits of the decoder; free-running tokens are only reported."""

    entry = ENCODE
    writes = True

    @property
    def subject(self) -> str:  # type: ignore[override]
        """What is compared."""
        return "logits"

    def cases(
        self, loaded: Any, texts: Sequence[str], tokens: Sequence[str], count: int
    ) -> tuple[Source, ...]:
        """The given texts, or English, tokens or features by seed."""
        stored = self._stored
        if stored.features is not None:
            if texts or tokens:
                raise InputError(f"{loaded.name} takes features: give no --prompt")
            random = np.random.default_rng(0)
            made = (random.standard_normal(stored.features) for _ in range(count))
            return tuple(self.as_case(each.astype(np.float32)) for each in made)
        if texts and loaded.tokenizer is None:
            raise InputError(
                f"{loaded.name} has no tokenizer, so it does not accept text: give token ids "
                '(--tokens "1 2 3"), or put its tokenizer.json into the folder'
            )
        given = [Source(loaded.tokenizer.encode(text), text=text) for text in texts]
        given += [Source(numbers(each)) for each in tokens]
        if given:
            return tuple(given)
        room = stored.context_length
        if loaded.tokenizer is not None:
            chosen = [GENERAL[index % len(GENERAL)] for index in range(count)]
            return tuple(Source(loaded.tokenizer.encode(text)[:room], text=text) for text in chosen)
        random = np.random.default_rng(0)
        lengths = [max(1, int(room * _SHARES[index % len(_SHARES)])) for index in range(count)]
        return tuple(
            Source(tuple(int(each) for each in random.integers(1, stored.vocabulary, length)))
            for length in lengths
        )

    def as_case(self, given: Any) -> Source:
        """A source, from token ids or features as well."""
        if isinstance(given, Source):
            return given
        if self._stored.features is None:
            return Source(tuple(int(token) for token in given))
        array = np.ascontiguousarray(given, dtype="<f4")
        return Source(features=Numbers("float32", array.shape, array.tobytes()))

    def inputs(self, case: Source) -> dict[str, Array]:
        """Of ``encode``."""
        made: dict[str, Array] = self._stored.prepare_source(case.plain)
        return made

    def check(self, cases: Sequence[Source], steps: int, *, every_entry: bool = False) -> None:
        """Every source fits the encoder, and the tokens the decoder."""
        for case in cases:
            self.inputs(case)
        self._stored.check_length(steps)

    def run(self, runner: Runner, case: Source, steps: int) -> Iterator[int]:
        """The source, the start, and greedy steps to an end token at most."""
        for number, _ in enumerate(self._generate(runner, case, steps, stop_at_end=True)):
            yield number

    def expected(
        self, case: Source, steps: int
    ) -> Iterator[tuple[str, range, Mapping[str, Array]]]:
        """The source once, then steps."""
        source = self.inputs(case)
        first = self._stored.start_tokens[0]
        yield ENCODE, range(1), source
        yield (
            DECODE,
            range(1, self._positions(steps) + 1),
            self._stored.prepare_step(source, first, 0),
        )

    def lengths(self, cases: Sequence[Source]) -> Iterator[tuple[str, dict[str, Array]]]:
        """Both entries have one size."""
        source = self.inputs(cases[0])
        yield ENCODE, source
        yield DECODE, self._stored.prepare_step(source, self._stored.start_tokens[0], 0)

    def trace(self, runner: Runner, case: Source, steps: int, rooted_deviation: float) -> CaseTrace:
        """Generate; the logits are those of the same run."""
        rows = [
            row for row in self._generate(runner, case, steps, stop_at_end=False) if row is not None
        ]
        logits = np.stack(rows)
        allowed = allowed_logit_error(self._stored.dtype, logits, rooted_deviation)
        return CaseTrace(case, self._chosen(logits), logits, allowed)

    def compare(self, runner: Runner, trace: CaseTrace) -> LogitVerdict:
        """Logits of a runner on the reference's tokens."""
        rows = self._forced(runner, trace.case, (*self._stored.start_tokens, *trace.choices[:-1]))
        return compare_logits(trace.outputs, np.stack(list(rows)), trace.allowed)

    def result(
        self, runner: Runner, trace: CaseTrace, text_of: Callable[[Sequence[int]], str]
    ) -> CaseResult:
        """Free-running tokens beside the reference's."""
        count = len(trace.choices)
        rows = self._generate(runner, trace.case, count, stop_at_end=False)
        tokens = self._chosen(np.stack([row for row in rows if row is not None]))
        first = len(self._stored.start_tokens) - 1
        comparison = compare_tokens(trace.choices, tokens, trace.outputs[first:])
        return CaseResult(
            prompt=trace.case.text or text_of(trace.case.token_ids),
            text=text_of(tokens),
            tokens=tokens,
            verdict=comparison.text,
            equal=comparison.first_parting is None,
        )

    def agreement(self, results: Sequence[CaseResult]) -> str:
        """Of tokens."""
        equal = sum(each.equal for each in results)
        return f"tokens equal the reference's for {equal} of {len(results)} sources"

    def call(self, runner: Runner, case: Source, steps: int = NEW_TOKENS) -> list[Array]:
        """Generate up to an end token, or what fits: the logits of each position."""
        room = self._stored.context_length - len(self._stored.start_tokens) + 1
        rows = self._generate(runner, case, min(steps, room), stop_at_end=True)
        return [np.stack([row for row in rows if row is not None])]

    def rows(self, case: Source, outputs: Sequence[Array]) -> Array:
        """The logits."""
        return outputs[0]

    def by_name(self, outputs: Sequence[Array]) -> dict[str, Array]:
        """The tokens that were chosen."""
        return {"tokens": np.array(self._chosen(outputs[0]))}

    def describe(self, case: Source, rows: Array) -> str:
        """The tokens that were chosen."""
        return " ".join(map(str, self._chosen(rows)))

    def texts(self, case: Source) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The source, if it is a text."""
        return () if case.text is None else ((case.text, case.token_ids),)

    def argument(self, *, takes_text: bool) -> str:
        """A source."""
        if self._stored.features is not None:
            return "--input features.npy"
        return '--prompt "A text"' if takes_text else '--tokens "1 2 3"'

    def from_arguments(
        self, texts: Sequence[str], tokens: Sequence[str], array: Any, codec: Any
    ) -> Source:
        """The one source that the command line has."""
        features = self._stored.features
        given = [*texts, *tokens]
        if features is not None and isinstance(array, np.ndarray) and not given:
            case = self.as_case(array)
        elif features is None and array is None and len(given) == 1:
            case = (
                Source(tuple(codec().encode(texts[0])), text=texts[0])
                if texts
                else Source(numbers(tokens[0]))
            )
        else:
            raise InputError(
                f"{self._stored.name} takes one source: give {self.argument(takes_text=True)}"
            )
        self.inputs(case)
        return case

    def pack_case(self, case: Source) -> dict[str, Any]:
        """Tokens, features in base 64, and text."""
        packed: dict[str, Any] = msgspec.to_builtins(case)
        return packed

    def unpack_case(self, data: Mapping[str, Any]) -> Source:
        """See :meth:`Workload.unpack_case`."""
        try:
            case = msgspec.convert(dict(data), Source)
        except msgspec.ValidationError as error:
            raise InputError(f"a stored source: {error}") from error
        self.inputs(case)
        return case

    def check_trace(self, trace: CaseTrace) -> None:
        """Tokens of the vocabulary, and logits for each position."""
        self._stored.check_tokens(trace.choices)
        shape = (self._positions(len(trace.choices)), self._stored.vocabulary)
        if not trace.choices or trace.outputs.shape != shape or trace.outputs.dtype.kind != "f":
            raise InputError(f"a stored run has no floating-point logits {shape}")

    def _positions(self, steps: int) -> int:
        """Tokens that the decoder is given for that many new ones."""
        return len(self._stored.start_tokens) + steps - 1

    def _chosen(self, logits: Array) -> tuple[int, ...]:
        stored = self._stored
        tokens = list(stored.start_tokens)
        start = len(tokens)
        for row in logits[start - 1 :]:
            tokens.append(stored.rules.choose(row, tokens, start, stored.end_tokens))
        # Where there was room for more, the last one is an end token.
        if stored.rules.last is not None and tokens[-1] not in stored.end_tokens:
            tokens[-1] = stored.rules.last
        return tuple(tokens[start:])

    def _generate(
        self, runner: Runner, case: Source, steps: int, *, stop_at_end: bool
    ) -> Iterator[Array | None]:
        """None for the source, then the logits of each step."""
        stored = self._stored
        stored.check_length(steps)
        source = self.inputs(case)
        runner.reset()
        runner.run(ENCODE, source)
        yield None
        tokens = list(stored.start_tokens)
        start = len(tokens)
        for position in range(self._positions(steps)):
            row = self._step(runner, source, tokens[position], position)
            yield row
            if position + 1 >= start:
                tokens.append(stored.rules.choose(row, tokens, start, stored.end_tokens))
                if stop_at_end and tokens[-1] in stored.end_tokens:
                    return

    def _forced(self, runner: Runner, case: Source, tokens: Sequence[int]) -> Iterator[Array]:
        source = self.inputs(case)
        runner.reset()
        runner.run(ENCODE, source)
        for position, token in enumerate(tokens):
            yield self._step(runner, source, token, position)

    def _step(
        self, runner: Runner, source: Mapping[str, Array], token: int, position: int
    ) -> Array:
        """A copy of a step's logits: a runner may reuse its memory."""
        outputs = runner.run(DECODE, self._stored.prepare_step(source, token, position))
        return np.array(next(iter(outputs.values()))[0, -1])


WORKLOAD = EncoderDecoderWorkload
