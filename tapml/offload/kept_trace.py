"""The reference's run over all prompts, kept: tokens as JSON data, logits in a file of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.compare.modelwise import AllowedLogitError
from tapml.models.prompts import Prompt
from tapml.models.stored import StoredDecoder
from tapml.models.tensor_file import open_tensors, write_tensors
from tapml.offload.model_check import PromptTrace, ReferenceTrace
from tapml_targets.errors import InputError

_MOST_PROMPTS: Final = 1 << 16
_ALLOWED: Final = ("value", "from_rooting", "from_dtype")


def keep_trace(trace: ReferenceTrace, path: Path) -> list[dict[str, Any]]:
    """Write the logits to `path`; return the rest as plain data.

    Raises
    ------
    SetupError
        If the file cannot be written.
    """
    logits = {str(index): each.logits for index, each in enumerate(trace.prompts)}
    write_tensors(path, logits, {name: array.dtype.name for name, array in logits.items()})
    return [
        {
            "token_ids": list(each.prompt.token_ids),
            "text": each.prompt.text,
            "tokens": list(each.tokens),
            "allowed": asdict(each.allowed),
        }
        for each in trace.prompts
    ]


def read_trace(data: object, path: Path, model: StoredDecoder) -> ReferenceTrace:
    """Read back what :func:`keep_trace` wrote and returned.

    Raises
    ------
    InputError
        If it is something else, or does not fit the model.
    """
    if not isinstance(data, list) or not 0 < len(data) <= _MOST_PROMPTS:
        raise InputError("a kept trace: expected a list of prompts")
    tensors = open_tensors(path)
    traces = []
    for index, each in enumerate(data):
        prompt, tokens, allowed = _prompt(each, model)
        logits = tensors.get(str(index))
        shape = (len(prompt.token_ids) + len(tokens) - 1, model.vocabulary)
        if logits is None or logits.shape != shape or logits.dtype.kind != "f":
            raise InputError(f"a kept trace: prompt {index} has no logits {shape}")
        traces.append(PromptTrace(prompt, tokens, np.asarray(logits), allowed))
    return ReferenceTrace(tuple(traces))


def _prompt(
    data: object, model: StoredDecoder
) -> tuple[Prompt, tuple[int, ...], AllowedLogitError]:
    match data:
        case {
            "token_ids": [*token_ids],
            "text": str() | None as text,
            "tokens": [*tokens],
            "allowed": {
                "value": float(),
                "from_rooting": float(),
                "from_dtype": float(),
            } as allowed,
        } if token_ids and tokens and len(allowed) == len(_ALLOWED):
            prompt = Prompt(_tokens(token_ids, model), text)
            return prompt, _tokens(tokens, model), AllowedLogitError(**allowed)
    raise InputError("a kept trace: expected tokens, text and what is allowed of each prompt")


def _tokens(numbers: Sequence[Any], model: StoredDecoder) -> tuple[int, ...]:
    if not all(type(number) is int for number in numbers):
        raise InputError("a kept trace: expected whole numbers as tokens")
    model.check_tokens(numbers)
    return tuple(numbers)
