"""Falcon: parallel attention, one or few key and value heads; rotary embedding or ALiBi."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tapml.models.families.family import CacheShape, Family

if TYPE_CHECKING:
    from torch import Tensor, nn

# The class's own biases [heads, 1, positions], kept with the model.
_BIASES: Final = "alibi_biases"


def _cache(config: Any) -> tuple[CacheShape, ...]:
    heads = config.num_attention_heads
    if not config.new_decoder_architecture:
        # The newer one stores the heads repeated.
        heads = 1 if config.multi_query else config.num_kv_heads
    size = config.hidden_size // config.num_attention_heads
    return (CacheShape(heads, size, size),) * int(config.num_hidden_layers)


def _prepare(module: nn.Module) -> None:
    """Keep the biases of all positions: the class rounds them to bfloat16, which no entry has."""
    import torch
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    config: Any = module.config
    if config.alibi:
        positions = torch.ones((1, config.max_position_embeddings), dtype=torch.int64)
        heads = config.num_attention_heads
        biases = build_alibi_tensor(positions, heads, dtype=next(module.parameters()).dtype)
        module.register_buffer(_BIASES, biases, persistent=False)


@contextmanager
def _kept_biases(module: nn.Module) -> Iterator[None]:
    """The class makes them from a mask with two dimensions; an entry's has four."""
    from transformers.models.falcon import modeling_falcon

    own = modeling_falcon.build_alibi_tensor
    biases: Any = getattr(module, _BIASES, None)

    def kept(attention_mask: Tensor, _heads: int, *, dtype: Any) -> Tensor:
        found: Tensor = biases[..., : attention_mask.shape[-1]]
        return found.to(dtype)

    modeling_falcon.build_alibi_tensor = kept if biases is not None else own
    try:
        yield
    finally:
        modeling_falcon.build_alibi_tensor = own


FAMILY = Family(
    architectures=("FalconForCausalLM",),
    kv_heads="",
    embedding="transformer.word_embeddings.weight",
    layer="transformer.h.{}.",
    prefix="transformer.",
    cache=_cache,
    around=_kept_biases,
    prepare=_prepare,
)
