"""The program of a model's folder, for the backends that run torch modules.

What tapml reads without running anything of the folder: a recorded module
(:func:`tapml.from_torch`), a class of tapml's own, or a language model of a family that tapml
knows. A language model is run as a whole on all tokens of a text, without a cache: ``token_ids``
``[1, tokens]`` to logits ``[1, tokens, vocabulary]`` of a decoder, and with an ``attention_mask``
of 1 and 0 to what an encoder gives. An encoder-decoder reads ``decoder_token_ids`` beside its
source, which is ``features`` ``[1, bins, frames]`` where it is no text, and gives their logits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.modeling_outputs import BaseModelOutput

from tapml.backends.runner import FEATURES, MASK, TOKENS, WRITTEN, Input
from tapml.models.encoder_decoder import LoadedEncoderDecoder
from tapml.models.huggingface import load_any
from tapml.models.inputs import MASKED
from tapml.models.loaded import Loaded, LoadedEncoder, LoadedModel, LoadedModule
from tapml.models.one_entry import encoded
from tapml.models.recorded_module import RecordedModule
from tapml.models.recurrent import LoadedRecurrent
from tapml.models.said_by import said_by
from tapml_targets.errors import InputError, UnsupportedOperatorError

_ATTENTION: Final = {
    "math": [SDPBackend.MATH],
    # The block kernel does not take every shape.
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
}
_EXAMPLE: Final = 7
_WRITTEN_EXAMPLE: Final = 5
_TOKENS: Final = {TOKENS: "source", MASK: "source", WRITTEN: "written"}
"""Inputs whose second extent may be any, and what it counts."""


@dataclass(frozen=True)
class Program:
    """A module of tensors in order.

    Attributes
    ----------
    module
        Its graph.
    inputs
        A symbol is an extent that may be any.
    layered
        Whether nodes know the layers that they belong to.
    """

    module: fx.GraphModule
    inputs: Callable[[], list[Input]]
    layered: bool = False


def read_program(folder: Path) -> Program:
    """The program of a folder.

    Raises
    ------
    InputError
        If the folder holds no model.
    UnsupportedOperatorError
        If PyTorch cannot record a language model as one program.
    """
    model = load_any(folder)
    if not isinstance(model, LoadedModule):
        return _of_language(model)
    if isinstance(model, RecordedModule):
        module: Any = model.program.module(check_guards=False)
    else:
        prepared = model.stored.prepare(model.samples[0][0])
        examples = tuple(torch.from_numpy(each.copy()) for each in prepared.values())
        with torch.no_grad():
            module = torch.export.export(model.module, examples).module()
    inputs = [
        Input(
            each.name,
            tuple(extent if isinstance(extent, int) else None for extent in each.shape),
            each.dtype,
        )
        for each in model.stored.inputs
    ]
    return Program(module, lambda: inputs)


def attention(variant: str) -> AbstractContextManager[Any]:
    """Within it, attention takes the kernel of a variant's name: ``math`` or ``flash``."""
    return sdpa_kernel(_ATTENTION[variant]) if variant in _ATTENTION else nullcontext()


class _OfTokens(nn.Module):
    """A decoder or an encoder on whole texts.

    Positions and masks are made here, as the model's own making of them would bring the ways of
    one library into the graph.
    """

    def __init__(self, model: LoadedModel | LoadedEncoder) -> None:
        super().__init__()
        self.model: Any = model.module
        self.family = model.family
        self.element = getattr(torch, model.dtype)
        self.masked = MASKED[model.dtype]

    def forward(self, token_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The logits ``[1, tokens, vocabulary]``, or an encoder's first result."""
        tokens = torch.arange(token_ids.shape[1])
        if attention_mask is None:
            seen = (tokens[None] <= tokens[:, None])[None, None]
        else:
            seen = (attention_mask > 0)[:, None, None].expand(-1, -1, token_ids.shape[1], -1)
        mask = torch.where(seen, 0.0, self.masked).to(self.element)
        with self.family.around(self.model):
            arguments = self.family.arguments(self.model, tokens[None], mask)
            return encoded(self.model(input_ids=token_ids, **arguments))


class _OfState(nn.Module):
    """A recurrent model, on whole texts as well."""

    def __init__(self, model: LoadedModel | LoadedEncoder) -> None:
        super().__init__()
        self.model: Any = model.module

    def forward(self, token_ids: Tensor) -> Tensor:
        """The logits ``[1, tokens, vocabulary]``."""
        logits: Tensor = self.model(input_ids=token_ids, use_cache=False)[0]
        return logits


class _OfSource(nn.Module):
    """An encoder-decoder, on a whole source and a whole text behind it."""

    def __init__(self, model: LoadedEncoderDecoder) -> None:
        super().__init__()
        self.model: Any = model.module
        self.family = model.family
        self.element = getattr(torch, model.dtype)
        self.masked = MASKED[model.dtype]

    def forward(
        self, token_ids: Tensor, attention_mask: Tensor, decoder_token_ids: Tensor
    ) -> Tensor:
        """The logits ``[1, tokens, vocabulary]`` of what the decoder reads."""
        seen = (attention_mask > 0)[:, None, None]
        mask = torch.where(seen, 0.0, self.masked).to(self.element)
        with self.family.around(self.model):
            states = self.model.get_encoder()(
                input_ids=token_ids,
                attention_mask=mask.expand(-1, -1, token_ids.shape[1], -1),
            ).last_hidden_state
        across = mask.expand(-1, -1, decoder_token_ids.shape[1], -1)
        return self._decoded(states, decoder_token_ids, attention_mask=across)

    def _decoded(self, states: Tensor, written: Tensor, **masks: Tensor) -> Tensor:
        tokens = torch.arange(written.shape[1])
        seen = (tokens[None] <= tokens[:, None])[None, None]
        mask = torch.where(seen, 0.0, self.masked).to(self.element)
        with self.family.around(self.model):
            arguments = self.family.arguments(self.model, tokens[None], mask)
            logits: Tensor = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                decoder_input_ids=written, use_cache=False, **masks, **arguments,
            )[0]  # fmt: skip
        return logits


class _OfFeatures(_OfSource):
    """The same of speech."""

    def forward(self, features: Tensor, decoder_token_ids: Tensor) -> Tensor:  # type: ignore[override]
        """The logits ``[1, tokens, vocabulary]`` of what the decoder reads."""
        states = self.model.get_encoder()(features).last_hidden_state
        return self._decoded(states, decoder_token_ids)


def _of_language(model: Loaded) -> Program:
    if not isinstance(model, LoadedModel | LoadedEncoder | LoadedEncoderDecoder):
        raise InputError(
            f"{model.name} is neither a language model nor a module of tensors, as "
            "tapml.from_torch(...).save(folder) writes it"
        )
    network: Any = model.module
    if hasattr(network.config, "use_cache"):
        network.config.use_cache = False
    # A family without this attention keeps its own, from products and softmax.
    with suppress(AttributeError, ValueError, ImportError):
        network.set_attn_implementation("sdpa")
    module, given = _entry(model)
    least = {name: torch.export.Dim(f"{kind}_tokens", min=2, max=model.context_length)
             for name, kind in _TOKENS.items()}  # fmt: skip
    try:
        with torch.no_grad():
            program = torch.export.export(
                module,
                tuple(given.values()),
                dynamic_shapes=tuple({1: least[name]} if name in least else None for name in given),
            )
    except Exception as error:  # Of any class, from what the model does as it is recorded.
        raise UnsupportedOperatorError(f"torch.export of {model.name}: {said_by(error)}") from error
    inputs = [
        Input(name, (1, None), "int64")
        if name in least
        else Input(name, tuple(each.shape), model.dtype)
        for name, each in given.items()
    ]
    recorded: Any = program.module(check_guards=False)
    return Program(recorded, lambda: inputs, layered=True)


def _entry(
    model: LoadedModel | LoadedEncoder | LoadedEncoderDecoder,
) -> tuple[nn.Module, dict[str, Tensor]]:
    """What runs, and an example of what it reads."""
    vocabulary = int(model.config.vocab_size)
    tokens = {TOKENS: torch.arange(_EXAMPLE)[None] % vocabulary}
    masked = tokens | {MASK: torch.ones_like(tokens[TOKENS])}
    if isinstance(model, LoadedEncoder):
        return _OfTokens(model), masked
    if not isinstance(model, LoadedEncoderDecoder):
        return (_OfState if isinstance(model, LoadedRecurrent) else _OfTokens)(model), tokens
    written = {WRITTEN: torch.arange(_WRITTEN_EXAMPLE)[None] % vocabulary}
    if model.stored.features is None:
        return _OfSource(model), masked | written
    element = getattr(torch, model.dtype)
    features = {FEATURES: torch.zeros((1, *model.stored.features), dtype=element)}
    return _OfFeatures(model), features | written
