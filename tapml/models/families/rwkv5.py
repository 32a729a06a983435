"""RWKV5, which tapml computes itself (:mod:`tapml.models.rwkv`)."""

from typing import Any

from tapml.models.families.family import Family


def _register() -> None:
    from tapml.models import rwkv

    rwkv.register()


def _class() -> Any:
    from tapml.models.rwkv import Rwkv5ForCausalLM

    return Rwkv5ForCausalLM


def _state(config: Any) -> dict[str, tuple[int, ...]]:
    from tapml.models.rwkv import state_shapes

    return state_shapes(config)


FAMILY = Family(
    architectures=("Rwkv5ForCausalLM",),
    workload="recurrent",
    heads="",
    kv_heads="",
    positions="context_length",
    embedding="rwkv.embeddings.weight",
    layer="rwkv.blocks.{}.",
    state=_state,
    register=_register,
    own_class=_class,
)
