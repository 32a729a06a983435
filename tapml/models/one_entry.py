"""The one entry of a model without state: an encoder or a plain module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tapml.models.entries import EntryModule
from tapml.models.families.family import Family
from tapml.models.inputs import Array


class EncoderForward(nn.Module):
    """An encoder with an additive mask as input, and its first result as output.

    Positions and the kind of each sentence are constants: every sentence begins at 0.
    """

    def __init__(self, model: nn.Module, family: Family) -> None:
        super().__init__()
        self.model = model
        self.family = family

    def forward(self, token_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """``[batch, tokens, width]`` or ``[batch, classes]``.

        `token_ids` are int32 ``[batch, tokens]``, `attention_mask` is ``[batch, 1, 1, tokens]``.
        """
        positions = torch.arange(token_ids.shape[1], dtype=torch.int32)[None]
        rows = attention_mask.expand(-1, -1, token_ids.shape[1], -1)
        arguments = self.family.arguments(self.model, positions, rows)
        return encoded(self.model(input_ids=token_ids, **arguments))


def encoded(output: Any) -> Tensor:
    """What an encoder's output is moved and compared by: its first tensor.

    Of one that answers questions, the logits of a beginning and of an end are two numbers for each
    token.
    """
    begin, end = (getattr(output, each, None) for each in ("start_logits", "end_logits"))
    if isinstance(begin, Tensor) and isinstance(end, Tensor):
        return torch.stack((begin, end), dim=-1)
    result: Tensor = output[0]
    return result


def one_entry(
    name: str,
    module: nn.Module,
    inputs: Mapping[str, Array],
    outputs: tuple[str, ...] = ("result",),
) -> EntryModule:
    """An entry with fixed shapes, of a module in evaluation mode."""
    return EntryModule(
        name=name,
        module=module,
        example_inputs=tuple(torch.from_numpy(each.copy()) for each in inputs.values()),
        input_names=tuple(inputs),
        output_names=outputs,
        dynamic_shapes=None,
        state=(),
    )
