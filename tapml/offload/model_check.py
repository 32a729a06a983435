"""The model-wise check of Algorithm 1: the hybrid graph against the reference's own run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tapml.compare.modelwise import (
    AllowedLogitError,
    LogitVerdict,
    allowed_logit_error,
    compare_logits,
    gravest,
)
from tapml.execute.arrays import Array
from tapml.execute.generate import Decoder, Runner, greedy
from tapml.models.prompts import Prompt
from tapml.models.stored import StoredDecoder


@dataclass(frozen=True)
class PromptTrace:
    """What the reference made of one prompt.

    Attributes
    ----------
    prompt
        The prompt.
    tokens
        What the reference generated, greedily.
    logits
        ``[positions, vocabulary]``: of every prompt position, then of every generated token but
        the last, each run through the entry that will run it on the target.
    allowed
        The largest logit error that passes.
    """

    prompt: Prompt
    tokens: tuple[int, ...]
    logits: Array
    allowed: AllowedLogitError


@dataclass(frozen=True)
class ReferenceTrace:
    """The reference's run over all prompts."""

    prompts: tuple[PromptTrace, ...]

    @cached_property
    def key(self) -> str:
        """SHA-256 over tokens, logits and what is allowed, hexadecimal."""
        digest = hashlib.sha256()
        for each in self.prompts:
            digest.update(repr((each.prompt.token_ids, each.tokens, each.allowed)).encode())
            digest.update(np.ascontiguousarray(each.logits).view(np.uint8).data)
        return digest.hexdigest()


def trace_reference(
    model: StoredDecoder,
    runner: Runner,
    prompts: Sequence[Prompt],
    new_tokens: int,
    rooted_deviation: float,
) -> ReferenceTrace:
    """Generate on the reference, then record the logits teacher-forced on those tokens.

    Parameters
    ----------
    model, runner
        The model, and the reference that runs its plan.
    prompts
        At least one.
    new_tokens
        Tokens to generate for each.
    rooted_deviation
        Largest logit difference between the reference and PyTorch.

    Raises
    ------
    InputError
        If a prompt and its new tokens do not fit into the context.
    """
    traces = []
    for prompt in prompts:
        generated = greedy(model, runner, prompt.token_ids, new_tokens, stop_at_end=False)
        tokens = tuple(step.token for step in generated)
        logits = forced_logits(model, runner, prompt, tokens)
        allowed = allowed_logit_error(model.dtype, logits, rooted_deviation)
        traces.append(PromptTrace(prompt, tokens, logits, allowed))
    return ReferenceTrace(tuple(traces))


def check_model(model: Decoder, runner: Runner, trace: ReferenceTrace) -> LogitVerdict:
    """MODELWISEVALIDATION: the runner's logits on the reference's tokens, over all prompts."""
    return gravest(
        [
            compare_logits(
                each.logits, forced_logits(model, runner, each.prompt, each.tokens), each.allowed
            )
            for each in trace.prompts
        ]
    )


def forced_logits(model: Decoder, runner: Runner, prompt: Prompt, tokens: Sequence[int]) -> Array:
    """Logits ``[positions, vocabulary]`` with the reference's tokens fed in (teacher forcing)."""
    runner.reset()
    ids = prompt.token_ids
    if len(ids) == 1:
        first = runner.run("decode", model.prepare_decode(ids[0], 0))
    else:
        first = runner.run("prefill", model.prepare_prefill(ids))
    parts = [_logits(first)]
    for index, token in enumerate(tokens[:-1]):
        parts.append(_logits(runner.run("decode", model.prepare_decode(token, len(ids) + index))))
    logits: Array = np.concatenate(parts)
    return logits


def _logits(outputs: dict[str, Array]) -> Array:
    """The first output, ``[positions, vocabulary]``; copied, for a runner may reuse its memory."""
    return np.array(next(iter(outputs.values()))[0])
