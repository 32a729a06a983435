"""JetMoe: experts of queries as well as of the feed-forward.

The class sorts rows by their expert and splits them by counts that only a run knows. Here every row
stays where it is and takes its expert's weights, as in transformers' own batched experts.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from tapml.models.families.family import CacheShape, Family

if TYPE_CHECKING:
    from torch import Tensor, nn


def _cache(config: Any) -> tuple[CacheShape, ...]:
    size = int(config.kv_channels)
    return (CacheShape(int(config.num_key_value_heads), size, size),) * int(
        config.num_hidden_layers
    )


def _gate(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Places, tokens, gates and experts of ``tokens x top_k`` rows, and the gate's logits."""
    import torch

    logits = self.layer(hidden_states).float()
    chosen, experts = logits.topk(self.top_k, dim=1)
    gates = torch.softmax(chosen, dim=1).type_as(hidden_states)
    experts = experts.flatten()
    places = torch.arange(experts.shape[0], device=experts.device)
    return places, places // self.top_k, gates.flatten(), experts, logits


def _of_experts(self: Any, inputs: Tensor, experts: Tensor) -> Tensor:
    """Each row of ``inputs [rows, width]`` by the weights of its expert."""
    import torch

    return torch.bmm(self.weight[experts], inputs.unsqueeze(-1)).squeeze(-1)


def _prepare(module: nn.Module) -> None:
    from transformers.models.jetmoe import modeling_jetmoe

    for part in module.modules():
        if isinstance(part, modeling_jetmoe.JetMoeTopKGating):
            part.forward = MethodType(_gate, part)
        elif isinstance(part, modeling_jetmoe.JetMoeParallelExperts):
            part.forward = MethodType(_of_experts, part)


FAMILY = Family(
    architectures=("JetMoeForCausalLM",),
    heads="num_key_value_heads",
    kv_heads="",
    cache=_cache,
    prepare=_prepare,
)
