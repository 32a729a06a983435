"""The program of a model's folder, for the backends that run torch modules.

What tapml reads without running anything of the folder: a recorded module
(:func:`tapml.from_torch`), a class of tapml's own, or a language model of a family that tapml
knows. A language model is run as a whole on all tokens of a text, without a cache: ``token_ids``
``[1, tokens]`` to logits ``[1, tokens, vocabulary]`` of a decoder, and with an ``attention_mask``
of 1 and 0 to what an encoder gives.
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

from tapml.backends.runner import Input
from tapml.models.huggingface import load_any
from tapml.models.inputs import MASKED
from tapml.models.loaded import Loaded, LoadedEncoder, LoadedModel, LoadedModule
from tapml.models.recorded_module import RecordedModule
from tapml.models.recurrent import LoadedRecurrent
from tapml_targets.errors import InputError, UnsupportedOperatorError

_ATTENTION: Final = {
    "math": [SDPBackend.MATH],
    # The block kernel does not take every shape.
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
}
_EXAMPLE: Final = 7


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
            result: Tensor = self.model(input_ids=token_ids, **arguments)[0]
        return result


class _OfState(nn.Module):
    """A recurrent model, on whole texts as well."""

    def __init__(self, model: LoadedModel | LoadedEncoder) -> None:
        super().__init__()
        self.model: Any = model.module

    def forward(self, token_ids: Tensor) -> Tensor:
        """The logits ``[1, tokens, vocabulary]``."""
        logits: Tensor = self.model(input_ids=token_ids, use_cache=False)[0]
        return logits


def _of_language(model: Loaded) -> Program:
    if not isinstance(model, LoadedModel | LoadedEncoder):
        raise InputError(
            f"{model.name} is neither a decoder nor an encoder nor a module of tensors, as "
            "tapml.from_torch(...).save(folder) writes it"
        )
    network: Any = model.module
    if hasattr(network.config, "use_cache"):
        network.config.use_cache = False
    # A family without this attention keeps its own, from products and softmax.
    with suppress(AttributeError, ValueError, ImportError):
        network.set_attn_implementation("sdpa")
    encoder = isinstance(model, LoadedEncoder)
    names = ("token_ids", "attention_mask") if encoder else ("token_ids",)
    example = torch.arange(_EXAMPLE)[None] % int(model.config.vocab_size)
    given = (example, torch.ones_like(example)) if encoder else (example,)
    tokens = torch.export.Dim("tokens", min=2, max=model.context_length)
    try:
        with torch.no_grad():
            program = torch.export.export(
                (_OfState if isinstance(model, LoadedRecurrent) else _OfTokens)(model),
                given,
                dynamic_shapes=tuple({1: tokens} for _ in given),
            )
    except Exception as error:  # Of any class, from what the model does as it is recorded.
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsupportedOperatorError(f"torch.export of {model.name}: {line[:300]}") from error
    module: Any = program.module(check_guards=False)
    inputs = [Input(name, (1, None), "int64") for name in names]
    return Program(module, lambda: inputs, layered=True)
