"""Classes of ``transformers`` that no file of :mod:`tapml.models.families` has: tried as they are.

A class is a decoder, an encoder-decoder, a model of images or sound, or an encoder by the automatic
classes that it belongs to. Names of sizes come from its configuration's class, shapes of a cache
from one run of its own, masks and positions from trying: the first way in which the entries compute
what the class's own forward computes is taken. What does not work is refused by the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from itertools import product
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tapml.models.families.cross_attention import cross_attention
from tapml.models.families.family import BATCHED_EXPERTS, CacheShape, Family
from tapml.models.families.masks import by_layer, plain, text_config, unmasked, windowed
from tapml.models.families.preprocessed import features, image, sound
from tapml.models.families.sentence_masks import ARGUMENTS, after_padding
from tapml.models.loaded import Loaded, LoadedModel
from tapml.models.positions_of_past import positions_of_past
from tapml.models.quiet_transformers import quiet_transformers
from tapml.models.said_by import said_by
from tapml.models.stepped import CACHES, absent_attributes, kept_by
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
# Of a model that reads images too, the text alone.
_DECODERS: Final = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT")
_BOTH: Final = ("SEQ_TO_SEQ_CAUSAL_LM",)
_CLASSES: Final = ("IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "SEQUENCE_CLASSIFICATION")
_VECTORS: Final = (
    "MASKED_LM", "TOKEN_CLASSIFICATION", "QUESTION_ANSWERING", "TEXT_ENCODING", "CTC", "",
)  # fmt: skip
_NUMBERS: Final = (
    "SEMANTIC_SEGMENTATION", "INSTANCE_SEGMENTATION", "UNIVERSAL_SEGMENTATION", "OBJECT_DETECTION",
    "DEPTH_ESTIMATION", "IMAGE_TO_IMAGE", "KEYPOINT_DETECTION", "IMAGE_MATTING", "BACKBONE",
    "IMAGE_SEGMENTATION", "AUDIO_FRAME_CLASSIFICATION", "AUDIO_XVECTOR", "MASKED_IMAGE_MODELING",
)  # fmt: skip
_SHAPES: Final = {"pixel_values": image, "input_values": sound, "input_features": features}
_MASKS: Final = (plain, windowed, by_layer, after_padding, unmasked)
# Of a class without a cache: the tokens themselves, as numbers.
WHOLE_TEXT: Final = (CacheShape(1, 1, 1),)
_Model = TypeVar("_Model", bound=Loaded)


class NotThatWay(InputError):
    """A class does not move as a model of its kind; `reason` says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"{name} has no family in tapml/models/families and was tried as it is: {reason}; "
            "write the family's file, or take a model of a listed family"
        )
        self.reason = reason


def unlisted_family(architecture: str) -> Family | None:
    """The family of a class of ``transformers``; None if it has no such class of a known kind."""
    model_class = transformers_class(architecture)
    if model_class is None:
        return None
    config_class = model_class.config_class
    own_names = config_class.attribute_map
    sizes = {
        size: own_names.get(usual, usual)
        for size, usual in _SIZES.items()
        if hasattr(config_class, own_names.get(usual, usual))
    }
    source = getattr(model_class, "main_input_name", "")
    if not isinstance(source, str):
        source = ""  # Some have several.
    probe = _Probe()
    common: dict[str, Any] = {
        "architectures": (architecture,),
        **{size: sizes.get(size, "") for size in _SIZES},
        "kv_heads": "",
        "embedding": "",
        "layer": "",
        "cache": probe.cache,
        "state": probe.state,
        "tried": True,
        "loading": BATCHED_EXPERTS,
    }
    if architecture in _names(_DECODERS):
        candidates = tuple(map(_taken, _MASKS))
        return Family(
            **common,
            prepare=probe.run_or_whole,
            longest=_longest,
            candidates=candidates,
            around=positions_of_past,
        )
    if architecture in _names(_BOTH) and source == "input_ids":
        decoders = tuple(_taken(_for_decoder(each)) for each in _MASKS)
        return Family(
            **common,
            workload="encoder_decoder",
            prepare=probe.run,
            cross=cross_attention,
            candidates=decoders,
            around=positions_of_past,
        )
    classes = architecture in _names(_CLASSES)
    # Not every base model is one of an automatic class: the towers of models of two inputs.
    numbers = source in _SHAPES and architecture in _names(_NUMBERS)
    vectors = architecture in _names(_VECTORS) or architecture.endswith("Model")
    counts = hasattr(config_class, own_names.get("vocab_size", "vocab_size"))
    text = source == "input_ids" and counts and not _others(config_class)
    if not (classes or numbers or vectors) or not (text or source in _SHAPES):
        common |= dict.fromkeys(_SIZES, "")
        return Family(**common, workload="module", several=True)
    common["measure"] = "classes" if classes else "values" if numbers else "vectors"
    if source in _SHAPES:
        common |= dict.fromkeys(_SIZES, "")
        return Family(**common, workload="module", image=_SHAPES[source])
    return Family(
        **common,
        workload="encoder",
        prepare=_without_cache,
        longest=_longest,
        candidates=tuple(map(_taken, ARGUMENTS)),
    )


def transformers_class(name: object) -> Any:
    """The class of ``transformers`` with this name and a configuration, or None.

    Raises
    ------
    InputError
        If the class needs a library that is not installed.
    """
    import transformers

    try:
        found: Any = getattr(transformers, str(name), None)
        return found if getattr(found, "config_class", None) is not None else None
    except ImportError as error:  # of the class's module, or of the placeholder for the class
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise InputError(f"{name} of transformers cannot be used: {lines[0][:200]}") from error


def _names(kinds: tuple[str, ...]) -> frozenset[str]:
    """Names of the classes of some of ``transformers``' automatic classes."""
    from transformers.models.auto import modeling_auto

    found: set[str] = set()
    for kind in kinds:
        mapping = f"MODEL_FOR_{kind}_MAPPING_NAMES" if kind else "MODEL_MAPPING_NAMES"
        for names in getattr(modeling_auto, mapping, {}).values():
            found.update([names] if isinstance(names, str) else names)
    return frozenset(found)


def _others(config_class: Any) -> bool:
    """Whether a configuration has a part that reads images or sounds."""
    parts = getattr(config_class, "sub_configs", {})
    return bool({"vision_config", "audio_config"} & parts.keys())


def _for_decoder(
    arguments: Callable[[nn.Module, Tensor, Tensor], Mapping[str, Any]],
) -> Callable[[nn.Module, Tensor, Tensor], Mapping[str, Any]]:
    """The same under the names that an encoder-decoder's forward has for its decoder."""

    def made(module: nn.Module, positions: Tensor, mask: Tensor) -> Mapping[str, Any]:
        given = arguments(module, positions, mask)
        return {f"decoder_{name}": value for name, value in given.items()}

    return made


def _without_cache(module: nn.Module) -> None:
    """A decoder that reads sentences keeps nothing."""
    config: Any = module.config
    if getattr(config, "use_cache", None):
        config.use_cache = False


def _longest(module: nn.Module) -> int | None:
    """Tokens of a sentence by its table of positions, where they begin behind the padding's."""
    for path, part in module.named_modules():
        padding, table = getattr(part, "padding_idx", None), getattr(part, "weight", None)
        if "position" in path.rpartition(".")[2] and padding is not None and table is not None:
            return int(table.shape[0]) - int(padding) - 1
    return None


class _Probe:
    """Finds what the layers of a cache keep, in a run of the class's own."""

    def __init__(self) -> None:
        self._shapes: tuple[CacheShape, ...] = ()
        self._state: dict[str, tuple[int, ...]] = {}
        self.reason = ""

    def run_or_whole(self, module: nn.Module) -> None:
        """As :meth:`run`; a decoder that keeps what no entry has reads its whole text instead."""
        try:
            self.run(module)
        except NotThatWay as error:
            self.reason, self._shapes, self._state = error.reason, WHOLE_TEXT, {}

    def run(self, module: nn.Module) -> None:
        from transformers import DynamicCache

        name = type(module).__name__
        config: Any = module.config
        tokens = torch.tensor([[1, 2]])
        both = {"decoder_input_ids": tokens} if config.is_encoder_decoder else {}
        absent = absent_attributes(module)
        try:
            with torch.no_grad(), quiet_transformers():
                try:
                    kept = _kept(module(input_ids=tokens, use_cache=True, **both))
                except ValueError:
                    # Some (Switch) tell their encoder to keep what it cannot.
                    if not both:
                        raise
                    encoder: Any = module.get_encoder
                    encoded = encoder()(input_ids=tokens)
                    kept = _kept(module(encoder_outputs=encoded, use_cache=True, **both))
                if (
                    kept is None
                    and "past_key_values" in inspect.signature(module.forward).parameters
                ):
                    # Not every class gives back what it was given.
                    kept = DynamicCache(config=config)
                    module(input_ids=tokens, use_cache=True, past_key_values=kept, **both)
        except Exception as error:  # a class may ask for anything
            raise NotThatWay(
                name, f"its own forward of two tokens ends in an error ({_line(error)})"
            ) from error
        layers = list(getattr(kept, "layers", ()))
        found = [kept_by(layer, number) for number, layer in enumerate(layers)]
        state = {name: shape for _, states in found for name, shape in states.items()}
        for held, part, attribute in absent:
            if isinstance(value := getattr(part, attribute), Tensor):
                state[held] = tuple(value.shape)
                setattr(part, attribute, None)
        shapes = []
        for number, (shape, _) in enumerate(found):
            if shape is None or (not shape.heads and not state):
                kind = type(layers[number]).__name__
                raise NotThatWay(name, f"layer {number} keeps a {kind}, not keys and values alone")
            shapes.append(shape)
        if not shapes and "past_key_values" in inspect.signature(module.forward).parameters:
            raise NotThatWay(name, "its forward gives no cache of keys and values")
        shapes = shapes or [*WHOLE_TEXT]
        self._shapes, self._state = tuple(shapes), state

    def cache(self, _config: Any) -> tuple[CacheShape, ...]:
        return self._shapes

    def state(self, _config: Any) -> Mapping[str, tuple[int, ...]]:
        return self._state


def _kept(output: Any) -> Any:
    """The cache in what a forward gives, for itself and not for its encoder."""
    for each in CACHES:
        if (found := getattr(output, each, None)) is not None:
            return getattr(found, "self_attention_cache", found)
    return None


def _taken(
    arguments: Callable[[nn.Module, Tensor, Tensor], Mapping[str, Any]],
) -> Callable[[nn.Module, Tensor, Tensor], Mapping[str, Any]]:
    """Without the arguments that a class's forward does not have."""

    def made(module: nn.Module, positions: Tensor, mask: Tensor) -> Mapping[str, Any]:
        known = inspect.signature(module.forward).parameters
        given = arguments(module, positions, mask)
        return {name: value for name, value in given.items() if name in known}

    return made


def settled(model: _Model) -> _Model:
    """The model with the first way of its family that computes what its own forward computes.

    Raises
    ------
    InputError
        If no way does; the message says what the first one gave.
    """
    with quiet_transformers():
        return _settled(model)


def _settled(model: _Model) -> _Model:
    family: Family = model.family  # type: ignore[attr-defined]
    reasons = []
    counts = (False, True) if family.workload in {"decoder", "stepped"} else (False,)
    whole = family.workload == "decoder" and family.cache(model.config) == WHOLE_TEXT
    ways = [(False, family.candidates[0])] if whole else product(counts, family.candidates)
    for counted, arguments in ways:
        changed = replace(family, arguments=arguments, counted=counted, whole=whole)
        changes: Any = {"family": changed}
        tried = replace(model, **changes)
        reason = _difference(tried)
        if reason is None:
            return _noted(tried) if whole else tried
        reasons.append(reason)
    if isinstance(model, LoadedModel) and not whole:
        read: Any = _of_whole_text(model)
        if _difference(read) is None:
            noted: _Model = _noted(read, reasons[0])
            return noted
    raise NotThatWay(type(model.module).__name__, reasons[0])


def _of_whole_text(model: LoadedModel) -> LoadedModel:
    """A decoder that keeps its tokens alone and reads them all in every run."""
    config: Any = text_config(model.module)
    config.use_cache = False
    family = replace(
        model.family,
        workload="decoder",
        cache=lambda _: WHOLE_TEXT,
        state=lambda _: {},
        arguments=model.family.candidates[0],
        whole=True,
    )
    kept = {each.name: getattr(model, each.name) for each in fields(LoadedModel)}
    return LoadedModel(**kept | {"family": family})


def _noted(model: _Model, reason: str = "") -> _Model:
    """With a note that it keeps no keys and values."""
    note = (
        "it keeps its tokens alone, so every run reads the whole context: a token costs what "
        f"{model.context_length} tokens cost, and more with a longer --context"
    )
    changes: Any = {"notes": (*model.notes, f"{note}: {reason}" if reason else note)}
    noted: _Model = replace(model, **changes)
    return noted


def checked(model: _Model) -> _Model:
    """A model without such ways, if its entries compute what its own forward computes.

    Raises
    ------
    InputError
        If they do not.
    """
    reason = _difference(model)
    if reason is not None:
        raise NotThatWay(type(model.module).__name__, reason)
    return model


def _difference(model: Loaded) -> str | None:
    """What is wrong with a model's entries in PyTorch; None if nothing is."""
    position = 0
    try:
        for step in model.own_steps():
            # Of results that are infinite, as scores of what is left out, equal ones have no error.
            with np.errstate(invalid="ignore"):
                errors = np.where(step.ours == step.own, 0.0, np.abs(step.ours - step.own))
            finite = step.own[np.isfinite(step.own)]
            error = errors.max(initial=0.0) / (np.abs(finite).max(initial=0.0) or 1.0)
            if not error <= _TOLERANCE[model.dtype]:
                return (
                    f"with our masks, {step.entry} at position {position} differs from its own "
                    f"forward by {error:.2g} of the largest output"
                )
            position += len(step.own)
    except Exception as error:  # a class may ask its cache for anything
        return f"its forward does not take our inputs ({_line(error)})"
    return None


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {said_by(error)}"
