"""T5 and mT5: text to text; positions are a bias of the scores by distance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from tapml.models.families.cross_attention import cross_attention, masked
from tapml.models.families.family import CacheShape, Family


def _cache(config: Any) -> tuple[CacheShape, ...]:
    shape = CacheShape(int(config.num_heads), int(config.d_kv), int(config.d_kv))
    return (shape,) * int(config.num_decoder_layers)


# The class's own buckets by distance, kept with the attention that has them.
_BUCKETS: Final = "buckets_by_distance"


def _prepare(module: Any) -> None:
    """Keep a table of buckets: the class computes in 64 bits, which not every device has.

    From the class's largest distance on, the bucket stays the same.
    """
    import torch

    for part in module.modules():
        if getattr(part, "has_relative_attention_bias", False):
            farthest = int(part.relative_attention_max_distance)
            distances = torch.arange(-farthest, farthest + 1)
            buckets = part._relative_position_bucket(
                distances, not part.is_decoder, part.relative_attention_num_buckets, farthest
            )
            part.register_buffer(_BUCKETS, buckets.to(torch.int32), persistent=False)


@contextmanager
def _in_32_bits(module: Any) -> Iterator[None]:
    """The bias by distance from the table, while an entry runs."""
    parts = [each for each in module.modules() if hasattr(each, _BUCKETS)]
    for part in parts:
        part.compute_bias = partial(_bias, part)
    try:
        yield
    finally:
        for part in parts:
            del part.compute_bias


def _bias(part: Any, queries: int, keys: int, device: Any = None, past_seen_tokens: Any = 0) -> Any:
    import torch

    farthest = int(part.relative_attention_max_distance)
    first = torch.arange(queries, dtype=torch.int32)[:, None] + past_seen_tokens
    distance = torch.arange(keys, dtype=torch.int32)[None] - first
    near = distance.clamp(-farthest, farthest) + farthest
    buckets = torch.index_select(getattr(part, _BUCKETS), 0, near.reshape(-1))
    values = part.relative_attention_bias(buckets.reshape(queries, keys))
    return values.permute([2, 0, 1])[None]


FAMILY = Family(
    architectures=("T5ForConditionalGeneration", "MT5ForConditionalGeneration"),
    workload="encoder_decoder",
    width="d_model",
    layers="num_layers",
    heads="num_heads",
    kv_heads="",
    positions="",
    embedding="shared.weight",
    layer="encoder.block.{}.",
    cache=_cache,
    arguments=masked,
    cross=cross_attention,
    around=_in_32_bits,
    prepare=_prepare,
)
