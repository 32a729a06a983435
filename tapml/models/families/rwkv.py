"""What the families of RWKV share: tapml computes them itself (:mod:`tapml.models.rwkv`)."""

from collections.abc import Iterable
from typing import Any

from tapml.models.families.family import Family


def rwkv_family(architecture: str) -> Family:
    """The family of one class of :mod:`tapml.models.rwkv`, named as there."""

    def own_class() -> Any:
        from tapml.models import rwkv

        return getattr(rwkv, architecture)

    return Family(
        architectures=(architecture,),
        workload="recurrent",
        heads="",
        kv_heads="",
        positions="context_length",
        embedding="rwkv.embeddings.weight",
        layer="rwkv.blocks.{}.",
        tokenizer="rwkv_vocab_v20230424.txt",
        state=_state,
        by_weights=_by_weights,
        register=_register,
        own_class=own_class,
    )


def _register() -> None:
    from tapml.models import rwkv

    rwkv.register()


def _state(config: Any) -> dict[str, tuple[int, ...]]:
    from tapml.models.rwkv import state_shapes

    return state_shapes(config)


def _by_weights(config: Any, names: Iterable[str]) -> None:
    """Trained initial values are known by their names: no configuration speaks of them."""
    config.initial_state = any(name.endswith(".attention.time_state") for name in names)
