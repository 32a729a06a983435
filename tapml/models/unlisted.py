"""Decoders of ``transformers`` that no file of :mod:`tapml.models.families` has: tried as they are.

Names of sizes come from the class's configuration, shapes of the cache from one run of the class's
own, masks from trying: the first kind with which the entries compute what the class's own forward
computes is taken. What does not work is refused by the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from tapml.models.families.family import BATCHED_EXPERTS, CacheShape, Family
from tapml.models.families.masks import by_layer, plain, windowed
from tapml.models.loaded import LoadedModel
from tapml_targets.errors import InputError

_TOLERANCE: Final = {"float32": 1e-4, "float16": 2e-2}
# Sizes by their usual names; a configuration class says what it calls them.
_SIZES: Final = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
}


def unlisted_family(architecture: str) -> Family | None:
    """The family of a causal language model of ``transformers``; None if it has no such class."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if architecture not in set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        return None
    model_class: Any = getattr(transformers, architecture, None)
    config_class = getattr(model_class, "config_class", None)
    if config_class is None:
        return None
    own_names = config_class.attribute_map
    names = {
        size: own_names.get(usual, usual)
        for size, usual in _SIZES.items()
        if hasattr(config_class, own_names.get(usual, usual))
    }
    probe = _Probe()
    return Family(
        architectures=(architecture,),
        **{size: names.get(size, "") for size in _SIZES},
        kv_heads="",
        embedding="",
        layer="",
        cache=probe.cache,
        prepare=probe.run,
        candidates=(_taken(plain), _taken(windowed), _taken(by_layer)),
        loading=BATCHED_EXPERTS,
    )


class _Probe:
    """Finds the shapes of a cache in a run of the class's own."""

    def __init__(self) -> None:
        self._shapes: tuple[CacheShape, ...] = ()

    def run(self, module: nn.Module) -> None:
        name = type(module).__name__
        try:
            with torch.no_grad():
                output = module(input_ids=torch.tensor([[1, 2]]), use_cache=True)
            kept = getattr(output, "past_key_values", None)
        except Exception as error:  # a class may ask for anything
            raise _refused(
                name, f"its own forward of two tokens ends in an error ({_line(error)})"
            ) from error
        shapes = []
        for number, layer in enumerate(getattr(kept, "layers", ())):
            pair = [getattr(layer, part, None) for part in ("keys", "values")]
            if any(not isinstance(each, Tensor) or each.dim() != 4 for each in pair):
                kind = type(layer).__name__
                raise _refused(name, f"layer {number} keeps a {kind}, not keys and values alone")
            key, value = (tuple(each.shape) for each in pair if each is not None)
            shapes.append(CacheShape(key[1], key[3], value[3]))
        if not shapes:
            raise _refused(name, "its forward gives no cache of keys and values")
        self._shapes = tuple(shapes)

    def cache(self, _config: Any) -> tuple[CacheShape, ...]:
        return self._shapes


def _taken(
    arguments: Callable[[nn.Module, Tensor, Tensor], Mapping[str, Any]],
) -> Callable[[nn.Module, Tensor, Tensor], Mapping[str, Any]]:
    """Without the arguments that a class's forward does not have."""

    def made(module: nn.Module, positions: Tensor, mask: Tensor) -> Mapping[str, Any]:
        known = inspect.signature(module.forward).parameters
        given = arguments(module, positions, mask)
        return {name: value for name, value in given.items() if name in known}

    return made


def settled(model: LoadedModel) -> LoadedModel:
    """The model with the first kind of masks that computes what its own forward computes.

    Raises
    ------
    InputError
        If none does; the message has what the first one gave.
    """
    reasons = []
    for arguments in model.family.candidates:
        tried = replace(model, family=replace(model.family, arguments=arguments))
        reason = _difference(tried)
        if reason is None:
            return tried
        reasons.append(reason)
    raise _refused(type(model.module).__name__, reasons[0])


def _difference(model: LoadedModel) -> str | None:
    """What is wrong with a model's entries in PyTorch; None if nothing is."""
    position = 0
    try:
        for step in model.own_steps():
            error = np.abs(step.ours - step.own).max() / (np.abs(step.own).max() or 1.0)
            if not error <= _TOLERANCE[model.dtype]:
                return (
                    f"with a cache, {step.entry} at position {position} differs from its own "
                    f"forward by {error:.2g} of the largest output"
                )
            position += len(step.own)
    except Exception as error:  # a class may ask its cache for anything
        return f"its forward does not take our cache and masks ({_line(error)})"
    return None


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _refused(name: str, reason: str) -> InputError:
    return InputError(
        f"{name} has no family in tapml/models/families and was tried as it is: {reason}; write "
        "the family's file, or take a model of a listed family"
    )
