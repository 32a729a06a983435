"""What encoder-decoders share: the decoder's cache and mask, and its attention to the encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tapml.models.families.family import CacheShape

if TYPE_CHECKING:
    from torch import Tensor, nn

# Attention of a decoder to its encoder, and the layers that make its keys and values.
_CROSS: Final = frozenset({"encoder_attn", "cross_attn", "crossattention", "EncDecAttention"})
_KEY_AND_VALUE: Final = (("k_proj", "v_proj"), ("k", "v"), ("key", "value"))


def decoder_cache(config: Any) -> tuple[CacheShape, ...]:
    """A key and value head for each head of the decoder."""
    heads = int(config.decoder_attention_heads)
    size = int(config.d_model) // heads
    return (CacheShape(heads, size, size),) * int(config.decoder_layers)


def masked(_module: nn.Module, _positions: Tensor, mask: Tensor) -> dict[str, Any]:
    """One mask for all layers of the decoder."""
    return {"decoder_attention_mask": mask}


def cross_attention(module: Any) -> list[tuple[Any, Any]]:
    """The layers of keys and values of each attention to the encoder."""
    found = []
    for path, part in module.get_decoder().named_modules():
        if path.rpartition(".")[2] in _CROSS:
            found += [
                (getattr(part, key), getattr(part, value))
                for key, value in _KEY_AND_VALUE
                if hasattr(part, key) and hasattr(part, value)
            ]
    return found
