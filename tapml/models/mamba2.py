"""Mamba2 step by step: the weights and norms of transformers' class, the state as tensors.

The class computes in chunks of a fixed length, for which it pads and keeps a cache of its own. Here
the recurrence is an operator (:mod:`tapml.own_operators.ssd`), so any number of tokens continues
from any state (Dao and Gu, "Transformers are SSMs").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tapml.own_operators import register as register_operators


def state_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of all state by name: a layer's last inputs of the convolution, and its matrices."""
    inner = int(config.expand * config.hidden_size)
    channels = inner + 2 * config.n_groups * config.state_size
    shapes = {
        "convolution": (config.conv_kernel - 1, channels),
        "matrix": (config.num_heads, config.head_dim, config.state_size),
    }
    return {
        f"state.{layer}.{part}": shape
        for layer in range(config.num_hidden_layers)
        for part, shape in shapes.items()
    }


def run_mamba2(
    module: Any, token_ids: Tensor, state: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Logits ``[1, tokens, vocabulary]`` and the state after the tokens ``[1, tokens]``."""
    register_operators()
    hidden = module.backbone.embeddings(token_ids[0])
    after: list[Tensor] = []
    for index, block in enumerate(module.backbone.layers):
        normed = block.norm(hidden.to(block.norm.weight.dtype))
        mixed, *kept = _mix(block.mixer, normed, *state[2 * index : 2 * index + 2])
        hidden = hidden + mixed
        after += kept
    hidden = module.backbone.norm_f(hidden)
    return module.lm_head(hidden)[None], tuple(after)


def _mix(
    mixer: Any, hidden: Tensor, convolution: Tensor, matrix: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gate, channels, step = mixer.in_proj(hidden).split(
        [mixer.intermediate_size, mixer.conv_dim, mixer.num_heads], dim=-1
    )
    mixed, convolution = _convolved(mixer, channels, convolution)
    width = mixer.n_groups * mixer.ssm_state_size
    inputs, before, after = torch.split(mixed, [mixer.intermediate_size, width, width], dim=-1)
    heads = inputs.view(-1, mixer.num_heads, mixer.head_dim)
    step = functional.softplus(step + mixer.dt_bias)
    least, most = mixer.time_step_limit
    if (least, most) != (0.0, float("inf")):
        step = step.clamp(least, most)
    groups = (-1, mixer.n_groups, mixer.ssm_state_size)
    outputs, matrix = torch.ops.tapml.ssd(
        heads * step[..., None],
        torch.exp(-torch.exp(mixer.A_log) * step),
        before.view(groups).contiguous(),
        after.view(groups).contiguous(),
        matrix,
    )
    outputs = (outputs + heads * mixer.D[:, None]).flatten(1)
    return mixer.out_proj(mixer.norm(outputs, gate)), convolution, matrix


def _convolved(mixer: Any, channels: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Each channel with its last inputs; the last inputs after the tokens."""
    kernel = mixer.conv_kernel_size
    rows = torch.cat([before, channels])
    total = mixer.conv1d.bias if mixer.conv1d.bias is not None else torch.zeros(())
    for back in range(kernel):
        # A slice of what may be one row would end the export of a dynamic length.
        part = rows[kernel - 1 - back :] if back == 0 else rows[kernel - 1 - back : -back]
        total = total + part * mixer.conv1d.weight[:, 0, kernel - 1 - back]
    last = torch.stack([rows[-each] for each in range(kernel - 1, 0, -1)])
    return mixer.act(total), last
