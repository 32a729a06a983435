"""Baichuan and Baichuan2: a Llama with packed query, key and value; with ALiBi at 13B.

The 13B folders have no ``max_position_embeddings``. Baichuan2 divides each row of its head by the
row's length; the first one, of 64,000 tokens, does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tapml.models.families.family import Family
from tapml.models.families.published import Piece, Published, same_keys

_FIRST_VOCABULARY: Final = 64000


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    made = same_keys(config)
    made["alibi"] = "max_position_embeddings" not in made
    if made["alibi"]:
        made["max_position_embeddings"] = int(config.get("model_max_length") or 4096)
    return made


def _pieces(config: Mapping[str, Any], name: str) -> Sequence[Piece]:
    path, _, own = name.removesuffix(".weight").rpartition(".")
    if own == "W_pack":
        width = int(config["hidden_size"])
        return [
            Piece(f"{path}.{part}_proj.weight", slice(at * width, (at + 1) * width))
            for at, part in enumerate("qkv")
        ]
    return (Piece(name, unit_rows=own == "lm_head" and config["vocab_size"] != _FIRST_VOCABULARY),)


def _class() -> Any:
    from tapml.models.baichuan import BaichuanForCausalLM

    return BaichuanForCausalLM


FAMILY = Family(
    architectures=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    kv_heads="",
    own_class=_class,
    published=Published(config=_config, pieces=_pieces),
)
