"""xLSTM: each head keeps a matrix, a vector and the largest gate, a token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from tapml.models.families.family import Family
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_NAMES: Final = ("matrix", "vector", "gate")


def _state(config: Any) -> dict[str, tuple[int, ...]]:
    heads, keys = int(config.num_heads), int(config.qk_head_dim)
    shapes = (heads, keys, int(config.v_head_dim)), (heads, keys), (heads, 1)
    return {
        f"state.{block}.{name}": (1, *shape)
        for block in range(int(config.num_blocks))
        for name, shape in zip(_NAMES, shapes, strict=True)
    }


def _step(
    module: Any, token_ids: Tensor, state: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    # The class writes into it.
    each = [tensor.clone() for tensor in state]
    kept = {
        block: tuple(each[start : start + len(_NAMES)])
        for block, start in enumerate(range(0, len(each), len(_NAMES)))
    }
    cache = SimpleNamespace(rnn_state=kept, seqlen_offset=0)
    output = module(input_ids=token_ids, cache_params=cache, use_cache=True)
    return output.logits, each


def _prepare(module: Any) -> None:
    """Refuse sizes that the class itself cannot run: it keeps rounded ones."""
    config = module.config
    kept, own = int(config.qk_dim), int(config.hidden_size * config.qk_dim_factor)
    if kept != own:
        raise InputError(
            f"xLSTM of hidden_size {config.hidden_size} keeps keys of {kept} numbers and computes "
            f"{own}, so its class does not run: expected a multiple of 64"
        )


FAMILY = Family(
    architectures=("xLSTMForCausalLM",),
    workload="stepped",
    heads="num_heads",
    kv_heads="",
    positions="",
    embedding="backbone.embeddings.weight",
    layer="backbone.blocks.{}.",
    cache=lambda _: (),
    state=_state,
    step=_step,
    prepare=_prepare,
)
