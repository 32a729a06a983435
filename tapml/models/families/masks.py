"""What ``forward`` takes besides tokens and cache: positions, and a mask for each kind of layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch import Tensor, nn


def text_config(module: nn.Module) -> Any:
    """The configuration of a model's text, which may be a part of one that reads images too."""
    config: Any = module.config
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def plain(_module: nn.Module, position_ids: Tensor, attention_mask: Tensor) -> dict[str, Any]:
    """Positions and one causal mask for all layers."""
    return {"position_ids": position_ids, "attention_mask": attention_mask}


def unmasked(_module: nn.Module, position_ids: Tensor, _mask: Tensor) -> dict[str, Any]:
    """Positions alone: no layer attends."""
    return {"position_ids": position_ids}


# transformers' names of the kinds of layers.
FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
_CHUNKED: Final = "chunked_attention"


def windowed(module: nn.Module, position_ids: Tensor, attention_mask: Tensor) -> dict[str, Any]:
    """One mask for all layers, cut to the configuration's window if it has one."""
    config: Any = text_config(module)
    window = getattr(config, "sliding_window", None)
    mask = attention_mask
    if window is not None:
        mask = within_window(position_ids, attention_mask, int(window))
    return {"position_ids": position_ids, "attention_mask": mask}


def by_layer(module: nn.Module, position_ids: Tensor, attention_mask: Tensor) -> dict[str, Any]:
    """A mask for each kind of layer in the configuration's ``layer_types``."""
    import torch

    config: Any = text_config(module)
    kinds = getattr(config, "layer_types", None) or ()
    masks = {FULL: attention_mask}
    if SLIDING in kinds:
        masks[SLIDING] = within_window(position_ids, attention_mask, int(config.sliding_window))
    if _CHUNKED in kinds:
        size = int(config.attention_chunk_size)
        rows = torch.arange(attention_mask.shape[-1], dtype=torch.int32)
        same = (rows // size)[None, :] == (position_ids // size).reshape(-1, 1)
        masks[_CHUNKED] = masked_where_not(same, attention_mask)
    return {"position_ids": position_ids, "attention_mask": masks}


def both_ways(encoder: nn.Module, mask: Tensor) -> Tensor | dict[str, Tensor]:
    """The mask ``[1, 1, T, T]`` of an encoder, or one for each kind of its layers.

    A window reaches as far ahead as back, its last place included.
    """
    import torch

    config: Any = getattr(encoder, "config", None)
    if SLIDING not in (getattr(config, "layer_types", None) or ()):
        return mask
    places = torch.arange(mask.shape[-1], dtype=torch.int32)
    near = (places[None, :] - places[:, None]).abs() <= int(config.sliding_window)
    return {FULL: mask, SLIDING: masked_where_not(near, mask)}


def within_window(position_ids: Tensor, attention_mask: Tensor, window: int) -> Tensor:
    """The mask without the rows that have left the window: row p holds position p."""
    import torch

    rows = torch.arange(attention_mask.shape[-1], dtype=torch.int32)
    return masked_where_not(rows[None, :] > position_ids.reshape(-1, 1) - window, attention_mask)


def masked_where_not(seen: Tensor, attention_mask: Tensor) -> Tensor:
    """The additive mask, and the large negative number where a row ``[S, T]`` is not seen."""
    import torch

    from tapml.models.inputs import MASKED

    value = MASKED[str(attention_mask.dtype).removeprefix("torch.")]
    masked = torch.full((), value, dtype=attention_mask.dtype)
    return torch.where(seen[None, None], attention_mask, masked)
