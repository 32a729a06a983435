"""Generation with prefill and decode, on any runner of a plan's entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

from tapml.execute.arrays import Array
from tapml.execute.sampling import Choose, largest
from tapml_targets.errors import InputError

DECODE = "decode"
# Of a text for which no other number is given.
NEW_TOKENS: Final = 40


class Runner(Protocol):
    """An executor, or a finished plan on its device."""

    def reset(self) -> None:
        """Set the state to zero."""

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run an entry; its first output is the logits ``[1, S, vocabulary]``."""


class Decoder(Protocol):
    """A model that can generate: :class:`tapml.models.LoadedModel` or a package."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def context_length(self) -> int:
        """Limit on the tokens of prompt and output together."""

    @property
    def end_tokens(self) -> Set[int]:
        """Tokens that end generation."""

    def prompt_runs(self, token_ids: Sequence[int]) -> Sequence[tuple[str, Mapping[str, Array]]]:
        """Entries that a prompt goes through, with their inputs; the last gives the next token."""

    def prepare_decode(self, token_id: int, position: int) -> dict[str, Array]:
        """Inputs of ``decode`` for one token."""


@dataclass(frozen=True)
class GeneratedToken:
    """A token id and the logits ``[vocabulary]`` it was taken from.

    `step` counts the tokens from 0, that of the prompt's last run; `entry` is the entry that ran.
    """

    token: int
    logits: Array
    step: int
    entry: str


def greedy(
    model: Decoder,
    runner: Runner,
    token_ids: Sequence[int],
    max_new_tokens: int,
    *,
    stop_at_end: bool = True,
    choose: Choose = largest,
) -> Iterator[GeneratedToken]:
    """Generate from an empty state, always taking the largest logit unless `choose` does otherwise.

    A prompt of one token goes through decode, a longer one through prefill if the model has it.

    Parameters
    ----------
    model
        Prepares the inputs of the entries.
    runner
        Runs the entries.
    token_ids
        The prompt.
    max_new_tokens
        Number of tokens to generate, at least 1.
    stop_at_end
        Whether to stop after an end token, which is yielded.
    choose
        Takes a token from its logits; see :meth:`tapml.execute.sampling.Sampling.chooser`.

    Yields
    ------
    GeneratedToken
        As soon as its run is over.

    Raises
    ------
    InputError
        If the prompt is empty, or prompt and new tokens do not fit into the context.
    """
    check_lengths(model, len(token_ids), max_new_tokens)
    return _generate(model, runner, tuple(token_ids), max_new_tokens, stop_at_end, choose)


def check_lengths(model: Decoder, prompt_length: int, max_new_tokens: int) -> None:
    """Raise :class:`InputError` unless prompt and new tokens fit into the model's context."""
    if prompt_length == 0:
        raise InputError("the prompt has no token: give a prompt that is not empty")
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens: expected at least 1, got {max_new_tokens}")
    # The last generated token is never fed back, so it needs no row of the cache.
    needed = prompt_length + max_new_tokens - 1
    if needed > model.context_length:
        raise InputError(
            f"a prompt of {prompt_length} tokens and {max_new_tokens} new ones need a context of "
            f"{needed}, but {model.name} has {model.context_length}: shorten the prompt or ask for "
            "fewer tokens"
        )


def _generate(
    model: Decoder,
    runner: Runner,
    token_ids: tuple[int, ...],
    max_new_tokens: int,
    stop_at_end: bool,
    choose: Choose,
) -> Iterator[GeneratedToken]:
    runner.reset()
    *before, (entry, inputs) = model.prompt_runs(token_ids)
    for each in before:
        runner.run(*each)
    position = len(token_ids)
    for step in range(max_new_tokens):
        logits = next(iter(runner.run(entry, inputs).values()))[0, -1]
        token = choose(logits)
        yield GeneratedToken(token, logits, step, entry)
        if (stop_at_end and token in model.end_tokens) or step + 1 == max_new_tokens:
            return
        entry, inputs = DECODE, model.prepare_decode(token, position)
        position += 1
