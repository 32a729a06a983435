"""A model in memory: its torch module, its sizes, its tokenizer, and its entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tapml.models.entries import EntryModule, entry_module, state_shapes
from tapml.models.families.family import CacheShape, Family
from tapml.models.inputs import DECODE, PREFILL, Array
from tapml.models.one_entry import EncoderForward, encoded, one_entry
from tapml.models.stored import (
    ENCODE,
    MODULE,
    StoredDecoder,
    StoredEncoder,
    StoredModel,
    StoredModule,
)
from tapml.models.text import Codec
from tapml_targets.errors import MismatchError

_ROOTING_PROMPT: Final = 7
# Of a comparison with the class's own forward.
_DECODE_STEPS: Final = 4
_SHORTEST: Final = 12
_BEYOND_WINDOW: Final = 3
# What configurations call how far a token sees.
_WINDOWS: Final = ("sliding_window", "window_size", "attention_chunk_size")


class OwnStep(NamedTuple):
    """One run of an entry: its rows ``[positions, width]``, and those of the class's forward.

    `alone` says that they have a scale of their own and not that of all steps. `allowed` is the
    largest difference relative to it where that is not the dtype's, and `usual` the largest root
    of the mean of their squares then.
    """

    entry: str
    ours: Array
    own: Array
    alone: bool = False
    allowed: float | None = None
    usual: float | None = None

    @classmethod
    def of_output(
        cls,
        entry: str,
        ours: Any,
        own: Any,
        *,
        allowed: float | None = None,
        usual: float | None = None,
    ) -> OwnStep:
        """One output, whatever its shape.

        Raises
        ------
        MismatchError
            If the two have other shapes.
        """
        if np.shape(ours) != np.shape(own):
            raise MismatchError(
                f"an output of {entry} has the shape {np.shape(ours)}, and {np.shape(own)} in the "
                "model's own run: an operator means something else here"
            )
        rows = [np.asarray(each, dtype=np.float64).reshape(1, -1) for each in (ours, own)]
        return cls(entry, rows[0], rows[1], True, allowed, usual)


@dataclass(frozen=True)
class Loaded(ABC):
    """A model with its torch module.

    Attributes
    ----------
    name
        Zoo name or folder name.
    config
        The ``transformers`` configuration, or that of a module of tapml's own.
    tokenizer
        None if the folder has no tokenizer files.
    module
        In evaluation mode, eager attention, no gradients.
    dtype
        ``float32`` or ``float16``: of weights, inputs that are numbers, and outputs.
    context_length
        Limit on the tokens of a run; 1 if it takes none.
    weights_hash
        SHA-256 of names, shapes, dtypes and bytes of the weights as loaded, hexadecimal.
    source
        The folder.
    notes
        Sentences for the user (no tokenizer, bfloat16 stored as float32).
    quantization
        Name of the scheme or the format of its packed weights; empty if they are floats.
    floats
        Loads the same model before it was quantized; None where that is not known.
    """

    name: str
    config: Any
    tokenizer: Codec | None
    module: nn.Module
    dtype: str
    context_length: int
    weights_hash: str
    source: Path
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    quantization: str = field(default="", kw_only=True)
    floats: Callable[[], Loaded] | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def stored(self) -> StoredModel:
        """The model's sizes and name, without its module."""

    @abstractmethod
    def entry_modules(self) -> tuple[EntryModule, ...]:
        """The entries over the same parameters, ready for export."""

    @abstractmethod
    def rooting_runs(
        self, prompt: Sequence[int] | None = None
    ) -> tuple[tuple[str, dict[str, Array]], ...]:
        """Entries and inputs, one after the other, that the plan is compared with PyTorch on."""

    @abstractmethod
    def own_steps(self) -> Iterator[OwnStep]:
        """The entries in PyTorch beside the class's own forward, step by step."""

    @property
    def identity(self) -> str:
        """Everything but weights and code that the entries depend on."""
        return f"{self.config.to_json_string(use_diff=False)} {self.context_length}"

    @property
    def size(self) -> str:
        """How much it takes at once, for people."""
        return f"context {self.context_length}"

    @property
    def beside(self) -> tuple[str, ...]:
        """Of a model that is a file: names of the files that its tensors lie in."""
        return ()

    def empty_state(self) -> dict[str, Array]:
        """The state before a run, by name."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, those without an entry in the checkpoint included."""
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        return {**dict(self.module.named_buffers(remove_duplicate=False)), **parameters}


@dataclass(frozen=True)
class LoadedModel(Loaded):
    """A decoder-only language model with a fixed context.

    Attributes
    ----------
    family
        Its architecture.
    end_tokens
        Tokens that end generation.
    """

    stored_kind: ClassVar[type[StoredDecoder]] = StoredDecoder

    family: Family = field(kw_only=True)
    end_tokens: frozenset[int] = field(default=frozenset(), kw_only=True)

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.cache)

    @property
    def cache(self) -> tuple[CacheShape, ...]:
        """The cache of each layer."""
        return self.family.cache(self.config)

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self.config.vocab_size)

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """``prefill`` and ``decode`` over the same parameters, ready for export."""
        return tuple(
            entry_module(
                name,
                self.module,
                self.family,
                cache=self.cache,
                context_length=self.context_length,
                dtype=self.dtype,
            )
            for name in (PREFILL, DECODE)
        )

    @property
    def state_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all state by name."""
        return state_shapes(self.cache, self.context_length)

    def empty_state(self) -> dict[str, Array]:
        """The state before the first token."""
        return {
            name: np.zeros(shape, dtype=self.dtype) for name, shape in self.state_shapes.items()
        }

    def rooting_runs(
        self, prompt: Sequence[int] | None = None
    ) -> tuple[tuple[str, dict[str, Array]], ...]:
        """Prefill of a prompt but its last token, then decode of that one."""
        tokens = list(prompt) if prompt is not None else self._rooting_prompt()
        decode = self.prepare_decode(tokens[-1], len(tokens) - 1)
        return (PREFILL, self.prepare_prefill(tokens[:-1])), (DECODE, decode)

    def own_steps(self) -> Iterator[OwnStep]:
        """Prefill, then decode, against one ``forward`` of all tokens without a cache."""
        tokens, own = self._own_logits()
        length = len(tokens)
        entries = {entry.name: entry for entry in self.entry_modules()}
        state = {name: torch.from_numpy(each) for name, each in self.empty_state().items()}
        start, position = length - _DECODE_STEPS, 0
        runs = [(PREFILL, self.prepare_prefill(tokens[:start]))]
        runs += [(DECODE, self.prepare_decode(tokens[at], at)) for at in range(start, length)]
        for name, inputs in runs:
            entry = entries[name]
            tensors = {**state, **{key: torch.from_numpy(each) for key, each in inputs.items()}}
            with torch.no_grad():
                outputs = entry.module(*(tensors[each] for each in entry.input_names))
            state = {each.name: outputs[each.output_index] for each in entry.state}
            logits = outputs[0][0].numpy()
            yield OwnStep(name, logits, own[position : position + len(logits)])
            position += len(logits)

    def _own_logits(self) -> tuple[list[int], Array]:
        """Tokens beyond any window, and the logits of the class's own forward of them all."""
        window = max(int(getattr(self.config, each, None) or 0) for each in _WINDOWS)
        wanted = max(_SHORTEST, window + _DECODE_STEPS + _BEYOND_WINDOW)
        length = min(wanted, self.context_length)
        tokens = [(index * 7919 + 11) % self.vocabulary for index in range(length)]
        with torch.no_grad():
            output = self.module(input_ids=torch.tensor([tokens]), use_cache=False)
        own: Array = output.logits[0].numpy()
        return tokens, own

    def _rooting_prompt(self) -> list[int]:
        length = min(_ROOTING_PROMPT, self.context_length)
        return [(index * 7919 + 11) % self.vocabulary for index in range(length)]

    @cached_property
    def stored(self) -> StoredDecoder:
        """The model's sizes and name, without its module."""
        return self.stored_kind(
            name=self.name,
            dtype=self.dtype,
            context_length=self.context_length,
            vocabulary=self.vocabulary,
            end_tokens=self.end_tokens,
            weights_hash=self.weights_hash,
        )

    def prepare_prefill(self, token_ids: Sequence[int], start: int = 0) -> dict[str, Array]:
        """Inputs of ``prefill``; see :meth:`StoredDecoder.prepare_prefill`."""
        return self.stored.prepare_prefill(token_ids, start)

    def prepare_decode(self, token_id: int, position: int) -> dict[str, Array]:
        """Inputs of ``decode``; see :meth:`StoredDecoder.prepare_decode`."""
        return self.stored.prepare_decode(token_id, position)

    def prompt_runs(self, token_ids: Sequence[int]) -> list[tuple[str, dict[str, Array]]]:
        """The runs of a prompt; see :meth:`StoredDecoder.prompt_runs`."""
        return self.stored.prompt_runs(token_ids)

    def check_tokens(self, token_ids: Sequence[int]) -> None:
        """Raise :class:`InputError` if a token is not in the vocabulary."""
        self.stored.check_tokens(token_ids)


@dataclass(frozen=True)
class LoadedEncoder(Loaded):
    """An encoder of padded batches.

    Attributes
    ----------
    family
        Its architecture.
    batch
        Sentences of a run.
    padding
        The token behind the end of a short sentence.
    """

    family: Family = field(kw_only=True)
    batch: int = field(kw_only=True)
    padding: int = field(kw_only=True)

    @property
    def size(self) -> str:
        """Sentences and tokens."""
        return f"batches of {self.batch} x {self.context_length} tokens"

    @property
    def identity(self) -> str:
        """Everything but weights and code that the entry depends on."""
        return f"{super().identity} {self.batch}"

    @cached_property
    def stored(self) -> StoredEncoder:
        """The model's sizes and name, without its module."""
        return StoredEncoder(
            name=self.name,
            dtype=self.dtype,
            batch=self.batch,
            context_length=self.context_length,
            vocabulary=int(self.config.vocab_size),
            padding=self.padding,
            measure=self.family.measure,
            weights_hash=self.weights_hash,
        )

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """The one entry, ``encode``."""
        wrapped = EncoderForward(self.module, self.family).eval()
        return (one_entry(ENCODE, wrapped, self.stored.prepare([[1] * self.context_length])),)

    def rooting_runs(
        self, prompt: Sequence[int] | None = None
    ) -> tuple[tuple[str, dict[str, Array]], ...]:
        """A batch with a full row, a short one, and padding where there is room for more."""
        return ((ENCODE, self.stored.prepare(self.rooting_sentences())),)

    def rooting_sentences(self) -> list[list[int]]:
        """Sentences that leave a part of the batch to padding."""
        lengths = [self.context_length, max(1, self.context_length // 3)][: self.batch]
        size = int(self.config.vocab_size)
        tokens = [token for token in range(size) if token != self.padding]
        return [
            [tokens[(at * 7919 + 11 * row) % len(tokens)] for at in range(length)]
            for row, length in enumerate(lengths)
        ]

    def own_steps(self) -> Iterator[OwnStep]:
        """A padded batch against ``forward`` with the class's own mask of two dimensions."""
        sentences = self.rooting_sentences()
        ids = torch.full((self.batch, self.context_length), self.padding)
        mask = torch.zeros_like(ids)
        mask[:, 0] = 1
        for row, sentence in enumerate(sentences):
            ids[row, : len(sentence)] = torch.tensor(sentence)
            mask[row, : len(sentence)] = 1
        (entry,) = self.entry_modules()
        inputs = self.stored.prepare(sentences)
        with torch.no_grad():
            own = encoded(self.module(input_ids=ids, attention_mask=mask)).numpy()
            ours = entry.module(*(torch.from_numpy(each) for each in inputs.values())).numpy()
        own, ours = own[: len(sentences)], ours[: len(sentences)]
        if self.stored.measure == "vectors":
            kept = mask[: len(sentences)].bool().numpy()
            own, ours = own[kept], ours[kept]
        yield OwnStep(ENCODE, ours, own)


@dataclass(frozen=True)
class LoadedModule(Loaded):
    """A plain module: tensors in, tensors out.

    Attributes
    ----------
    signature
        Names, dtypes and shapes of its inputs and outputs, and what it is compared by.
    samples
        Inputs, each with what people call it; at least one.
    given
        What it is run on in place of the samples.
    """

    signature: StoredModule = field(kw_only=True)
    samples: tuple[tuple[tuple[Array, ...], str], ...] = field(kw_only=True)
    given: tuple[tuple[tuple[Array, ...], str], ...] = field(default=(), kw_only=True)

    @property
    def size(self) -> str:
        """The inputs."""
        return f"input {self.signature.signature}"

    @property
    def identity(self) -> str:
        """Everything but weights and code that the entry depends on."""
        return f"{self.config} {self.signature}"

    @property
    def stored(self) -> StoredModule:
        """The model's sizes and name, without its module."""
        return self.signature

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """The one entry, ``forward``: the module itself."""
        inputs = self.stored.prepare(self.samples[0][0])
        names = tuple(each.name for each in self.stored.outputs)
        return (one_entry(MODULE, self.module, inputs, names),)

    def rooting_runs(
        self, prompt: Sequence[int] | None = None
    ) -> tuple[tuple[str, dict[str, Array]], ...]:
        """The first sample."""
        return ((MODULE, self.stored.prepare(self.samples[0][0])),)

    def of_given(self, given: tuple[tuple[tuple[Array, ...], str], ...]) -> LoadedModule:
        """Run on what was given in place of the samples."""
        return replace(self, given=given)

    def own_steps(self) -> Iterator[OwnStep]:
        """None: the entry is the module."""
        return iter(())
