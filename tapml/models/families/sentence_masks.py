"""What an encoder's ``forward`` takes besides tokens, in the ways of transformers' classes.

Each function takes the module, positions int32 ``[1, T]`` and the additive mask of padding
``[batch, 1, T, T]``, as :class:`~tapml.models.families.family.Family` says of `arguments`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tapml.models.families.masks import FULL, SLIDING, by_layer, masked_where_not, plain, windowed

if TYPE_CHECKING:
    from torch import Tensor, nn

Arguments: TypeAlias = "Callable[[nn.Module, Tensor, Tensor], Mapping[str, Any]]"


def own_positions(_module: nn.Module, _positions: Tensor, mask: Tensor) -> dict[str, Any]:
    """The mask alone: the class has its own positions, or none."""
    return {"attention_mask": mask}


def after_padding(module: nn.Module, positions: Tensor, mask: Tensor) -> dict[str, Any]:
    """Positions that begin behind the padding token's, as RoBERTa's do."""
    config: Any = module.config
    first = int(getattr(config, "pad_token_id", None) or 0) + 1
    return {"position_ids": positions + first, "attention_mask": mask}


def causal(
    then: Arguments, module: nn.Module, positions: Tensor, mask: Tensor
) -> Mapping[str, Any]:
    """A decoder that reads sentences: no token sees a later one."""
    import torch

    rows = torch.arange(mask.shape[-1], dtype=torch.int32)
    seen = rows[None, :] <= positions.reshape(-1, 1)
    return then(module, positions, masked_where_not(seen, mask))


def near_by_layer(
    reach: int, module: nn.Module, positions: Tensor, mask: Tensor
) -> Mapping[str, Any]:
    """A mask for each kind of layer; a window reaches both ways, `reach` beyond its size."""
    import torch

    config: Any = module.config
    window = int(getattr(config, "sliding_window", None) or mask.shape[-1])
    rows = torch.arange(mask.shape[-1], dtype=torch.int32)
    near = (rows[None, :] - positions.reshape(-1, 1)).abs() <= window + reach
    masks = {FULL: mask, SLIDING: masked_where_not(near, mask)}
    return {"position_ids": positions, "attention_mask": masks}


def of_tokens(
    then: Arguments, module: nn.Module, positions: Tensor, mask: Tensor
) -> Mapping[str, Any]:
    """The mask in two dimensions, 1 for each token that is not padding."""
    import torch

    kept = (mask[:, 0, 0] >= 0).to(torch.int32)
    return then(module, positions, kept)


_POSITIONS: Final = (plain, after_padding, own_positions)
ARGUMENTS: Final[tuple[Arguments, ...]] = (
    *_POSITIONS,
    partial(near_by_layer, 0),
    partial(near_by_layer, -1),
    *(partial(causal, each) for each in (plain, windowed, by_layer)),
    *(partial(of_tokens, each) for each in _POSITIONS),
)
"""All ways, the most usual first."""
