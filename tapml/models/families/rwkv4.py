"""RWKV-4, which transformers has: a token at a time, on five numbers for each channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tapml.models.families.family import Family

if TYPE_CHECKING:
    from torch import Tensor, nn

_NAMES: Final = ("feed_forward", "attention", "numerator", "denominator", "maximum")
# As the class has it before the first token.
_LEAST: Final = -1e30


def _state(config: Any) -> dict[str, tuple[int, ...]]:
    shape = (1, int(config.hidden_size), int(config.num_hidden_layers))
    return {f"state.{name}": shape for name in _NAMES}


def _step(
    module: Any, token_ids: Tensor, state: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    import torch

    # The class writes into it.
    before = [each.clone() for each in state[:2]] + [each.float().clone() for each in state[2:]]
    # No token has a denominator of zero, so that a state of zeros is that before the first.
    first = before[3] == 0
    before[4] = torch.where(first, torch.full_like(before[4], _LEAST), before[4])
    output = module(input_ids=token_ids, state=before, use_cache=True)
    return output.logits, [new.to(old.dtype) for new, old in zip(output.state, state, strict=True)]


def _prepare(module: nn.Module) -> None:
    """Weights are divided before the first forward, for half precision."""
    model: Any = module
    if not model.rwkv.layers_are_rescaled:
        model.rwkv._rescale_layers()


FAMILY = Family(
    architectures=("RwkvForCausalLM",),
    workload="stepped",
    heads="",
    kv_heads="",
    positions="context_length",
    embedding="rwkv.embeddings.weight",
    layer="rwkv.blocks.{}.",
    cache=lambda _: (),
    state=_state,
    step=_step,
    prepare=_prepare,
)
