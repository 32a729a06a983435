"""A model without its torch module: what a session, a package and their runs know of it.

Needs numpy and nothing else, so that a resumed session and a packaged model start on the base
install.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from tapml.models.fixed_input import FixedInput, without_fixed
from tapml.models.inputs import (
    DECODE,
    MASKED,
    MODEL_INPUTS,
    PREFILL,
    TOKENS,
    Array,
    entry_inputs,
)
from tapml.models.token_rules import TokenRules
from tapml_targets.errors import InputError

_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096)]
_Dtype: TypeAlias = Annotated[str, Meta(pattern=rf"^({'|'.join(MASKED)})\Z")]
_Count: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 31)]
_Symbol: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}\Z")]
_Token: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]


class StoredModel(ABC):
    """The sizes of a model, from which the inputs of its entries are made.

    A subclass is a frozen dataclass; :mod:`tapml.workloads` runs and compares it.
    """

    name: str
    dtype: str
    context_length: int
    weights_hash: str

    @property
    @abstractmethod
    def workload(self) -> str:
        """The kind: name of a module of :mod:`tapml.workloads`."""

    @abstractmethod
    def facts(self) -> dict[str, int | str]:
        """Its sizes for people, by name."""

    @abstractmethod
    def sizes_in(
        self, shapes: Mapping[str, Sequence[Any]], output: str
    ) -> Iterator[tuple[str, Any, Any]]:
        """Name and value of each size, with that in an entry's inputs and first output."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Plain data; ``workload`` names the kind unless it is a decoder."""

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read back what :meth:`to_json` gave, trusting nothing in it.

        Raises
        ------
        InputError
            If it is something else.
        """
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise InputError(f"a stored model: {error}") from error


@dataclass(frozen=True)
class StoredDecoder(StoredModel):
    """The sizes of a decoder-only language model with a fixed context, and what drives it.

    A :class:`tapml.execute.generate.Decoder`; a :class:`tapml.models.LoadedModel` has one.

    Attributes
    ----------
    name
        Zoo name or folder name.
    dtype
        ``float32`` or ``float16``: of weights, cache, mask and logits.
    context_length
        Rows T of the cache: prompt and generated tokens together.
    vocabulary
        Number of tokens.
    end_tokens
        Tokens that end a text.
    weights_hash
        SHA-256 of names, shapes, dtypes and bytes of the weights as loaded, hexadecimal.
    """

    name: _Name
    dtype: _Dtype
    context_length: _Count
    vocabulary: _Count
    end_tokens: Annotated[frozenset[_Token], Meta(max_length=1 << 16)]
    weights_hash: _Name

    @property
    def workload(self) -> Literal["decoder"]:
        """No field, so that packages of earlier versions, all decoders, have none either."""
        return "decoder"

    def prepare_prefill(self, token_ids: Sequence[int], start: int = 0) -> dict[str, Array]:
        """Inputs of ``prefill`` in its order, without state; see :func:`entry_inputs`.

        Raises
        ------
        InputError
            If there are fewer than two tokens (one goes through decode), one is not in the
            vocabulary, or they do not fit into the context.
        """
        if len(token_ids) == 1:
            raise InputError(
                "prefill takes two tokens or more, got one: a single token goes through decode"
            )
        self.check_tokens(token_ids)
        return entry_inputs(token_ids, start, context_length=self.context_length, dtype=self.dtype)

    def prepare_decode(self, token_id: int, position: int) -> dict[str, Array]:
        """Inputs of ``decode`` in its order, without state.

        Raises
        ------
        InputError
            If the token is not in the vocabulary or the position not in the context.
        """
        self.check_tokens((token_id,))
        return entry_inputs(
            (token_id,), position, context_length=self.context_length, dtype=self.dtype
        )

    def prompt_runs(self, token_ids: Sequence[int]) -> list[tuple[str, dict[str, Array]]]:
        """Entries that a prompt goes through, with their inputs, in order."""
        if len(token_ids) == 1:
            return [(DECODE, self.prepare_decode(token_ids[0], 0))]
        return [(PREFILL, self.prepare_prefill(token_ids))]

    def facts(self) -> dict[str, int | str]:
        """Context and vocabulary."""
        return {"context": self.context_length, "vocabulary": self.vocabulary}

    def sizes_in(
        self, shapes: Mapping[str, Sequence[Any]], output: str
    ) -> Iterator[tuple[str, Any, Any]]:
        """Context and vocabulary."""
        if MODEL_INPUTS[2] in shapes:
            yield "context", (self.context_length,), tuple(shapes[MODEL_INPUTS[2]])
        yield "vocabulary", (self.vocabulary,), tuple(shapes[output][-1:])

    def check_tokens(self, token_ids: Sequence[int]) -> None:
        """Raise :class:`InputError` if a token is not in the vocabulary."""
        for token in token_ids:
            if not 0 <= token < self.vocabulary:
                raise InputError(
                    f"token {token} is not in the vocabulary of {self.name}: expected 0 to "
                    f"{self.vocabulary - 1}"
                )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"end_tokens": sorted(self.end_tokens)}


@dataclass(frozen=True)
class StoredRecurrent(StoredDecoder):
    """The sizes of a recurrent language model; attributes are those of :class:`StoredDecoder`.

    Its state does not grow, so `context_length` only bounds the tokens of a run.
    """

    workload: Literal["recurrent"] = "recurrent"  # type: ignore[assignment]

    def prepare_prefill(self, token_ids: Sequence[int], start: int = 0) -> dict[str, Array]:
        """The token ids alone; see :meth:`StoredDecoder.prepare_prefill`."""
        made = super().prepare_prefill(token_ids, start)
        return {TOKENS: made[TOKENS]}

    def prepare_decode(self, token_id: int, position: int) -> dict[str, Array]:
        """The token id alone; see :meth:`StoredDecoder.prepare_decode`."""
        made = super().prepare_decode(token_id, position)
        return {TOKENS: made[TOKENS]}


@dataclass(frozen=True)
class StoredStepped(StoredDecoder):
    """The sizes of a decoder that reads token by token; attributes as of :class:`StoredDecoder`.

    Its only entry is ``decode``.
    """

    workload: Literal["stepped"] = "stepped"  # type: ignore[assignment]

    def prompt_runs(self, token_ids: Sequence[int]) -> list[tuple[str, dict[str, Array]]]:
        """A run of ``decode`` for each token; see :meth:`StoredDecoder.prompt_runs`."""
        return [(DECODE, self.prepare_decode(each, at)) for at, each in enumerate(token_ids)]


Measure: TypeAlias = Literal["vectors", "classes", "values"]
"""What a model is compared by: the vectors of its first output, the classes that it chooses, or all
numbers of every output, each of its own output's scale."""

ENCODE: Final = "encode"
MODULE: Final = "forward"


@dataclass(frozen=True)
class StoredEncoder(StoredModel):
    """An encoder of padded batches with fixed sizes.

    Attributes
    ----------
    name, dtype, weights_hash
        As of :class:`StoredDecoder`.
    batch, context_length
        Sentences of a run, and tokens of each with its padding.
    vocabulary
        Number of tokens.
    padding
        The token behind the end of a short sentence.
    measure
        ``vectors``: the output is ``[batch, tokens, width]``; ``classes``: ``[batch, classes]``.
    """

    name: _Name
    dtype: _Dtype
    batch: Annotated[int, Meta(ge=1, le=1 << 16)]
    context_length: _Count
    vocabulary: _Count
    padding: _Token
    measure: Measure
    weights_hash: _Name
    workload: Literal["encoder"] = "encoder"

    def prepare(self, sentences: Sequence[Sequence[int]]) -> dict[str, Array]:
        """Inputs of ``encode``: ``token_ids`` int32 ``[batch, T]`` and an additive mask.

        ``attention_mask`` is ``[batch, 1, 1, T]``. A batch that is not full ends in sentences of
        one padding token.

        Raises
        ------
        InputError
            If there are too many sentences, or one is empty, too long or not of the vocabulary.
        """
        if not 0 < len(sentences) <= self.batch:
            raise InputError(
                f"{len(sentences)} sentences for {self.name}: expected 1 to {self.batch} in a batch"
            )
        ids = np.full((self.batch, self.context_length), self.padding, dtype=np.int32)
        mask = np.full(ids.shape, MASKED[self.dtype], dtype=self.dtype)
        mask[:, 0] = 0.0
        for row, sentence in enumerate(sentences):
            if not 0 < len(sentence) <= self.context_length:
                raise InputError(
                    f"a sentence of {len(sentence)} tokens for {self.name}: expected 1 to "
                    f"{self.context_length} (--context)"
                )
            if not all(0 <= token < self.vocabulary for token in sentence):
                raise InputError(
                    f"token {max(sentence)} is not in the vocabulary of {self.name}: expected 0 to "
                    f"{self.vocabulary - 1}"
                )
            ids[row, : len(sentence)] = sentence
            mask[row, : len(sentence)] = 0.0
        return {"token_ids": ids, "attention_mask": mask[:, None, None]}

    def facts(self) -> dict[str, int | str]:
        """Batch, tokens and vocabulary."""
        return {
            "batch": self.batch,
            "context": self.context_length,
            "vocabulary": self.vocabulary,
        }

    def sizes_in(
        self, shapes: Mapping[str, Sequence[Any]], output: str
    ) -> Iterator[tuple[str, Any, Any]]:
        """Batch and context together."""
        yield "batch", (self.batch, self.context_length), tuple(shapes.get("token_ids", ()))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class ModuleTensor:
    """An input or an output of a module: `shape` may hold symbols (``"batch"``).

    The shape of an output is empty: the plan knows it.
    """

    name: _Name
    dtype: Annotated[str, Meta(pattern=r"^(float32|float16|int(8|16|32|64)|uint8|bool)\Z")]
    shape: Annotated[tuple[_Count | _Symbol, ...], Meta(max_length=8)] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class SymbolRange:
    """A symbol of shapes with the least and the largest extent; None for no limit."""

    name: _Symbol
    least: _Count
    largest: _Count | None = None


@dataclass(frozen=True)
class StoredModule(StoredModel):
    """A module without state: tensors in, tensors out.

    Attributes
    ----------
    name, dtype, weights_hash
        As of :class:`StoredDecoder`.
    inputs, outputs
        In the order of the module's arguments and results.
    measure
        What it is compared by.
    labels
        A name for each class, if the first output chooses one.
    symbols
        Range of each symbol in the inputs' shapes.
    fixed
        Inputs that may be given by name, of no other numbers than these.
    context_length
        Always 1.
    """

    name: _Name
    dtype: _Dtype
    inputs: Annotated[tuple[ModuleTensor, ...], Meta(min_length=1, max_length=256)]
    outputs: Annotated[tuple[ModuleTensor, ...], Meta(min_length=1, max_length=256)]
    measure: Measure
    labels: Annotated[tuple[_Name, ...], Meta(max_length=1 << 16)]
    weights_hash: _Name
    symbols: Annotated[tuple[SymbolRange, ...], Meta(max_length=64)] = ()
    context_length: Literal[1] = 1
    workload: Literal["module"] = "module"
    # Whatever a result depends on of them is in the graph.
    fixed: Annotated[tuple[FixedInput, ...], Meta(max_length=256)] = field(default=(), repr=False)

    @property
    def signature(self) -> str:
        """The inputs for people."""
        return ", ".join(map(str, self.inputs))

    def prepare(self, arrays: Mapping[str, Array] | Sequence[Array]) -> dict[str, Array]:
        """The inputs of ``forward`` by name, each in its dtype, from names or in their order.

        Raises
        ------
        InputError
            If one is missing or unknown, has another shape, or numbers that its dtype cannot hold.
        """
        given = self._by_name(arrays)
        symbols: dict[str, int] = {}
        return {each.name: self._fitted(each, given[each.name], symbols) for each in self.inputs}

    def fitted(self, arrays: Array | Mapping[str, Array] | Sequence[Array]) -> tuple[Array, ...]:
        """The same in order; an array is the only input."""
        return tuple(self.prepare([arrays] if isinstance(arrays, np.ndarray) else arrays).values())

    def _by_name(self, arrays: Mapping[str, Array] | Sequence[Array]) -> Mapping[str, Array]:
        names = [each.name for each in self.inputs]
        if not isinstance(arrays, Mapping):
            if len(arrays) != len(names):
                raise InputError(
                    f"{len(arrays)} inputs for {self.name}: expected {len(names)}, {self.signature}"
                )
            return dict(zip(names, arrays, strict=True))
        arrays = without_fixed(arrays, self.fixed, self.name)
        if set(arrays) != set(names):
            raise InputError(
                f"inputs {', '.join(sorted(map(str, arrays))) or 'none'} for {self.name}: expected "
                f"{self.signature}"
            )
        return arrays

    def _fitted(self, wanted: ModuleTensor, array: Array, symbols: dict[str, int]) -> Array:
        shape = tuple(
            symbols.setdefault(extent, found) if isinstance(extent, str) else extent
            for extent, found in zip(wanted.shape, array.shape, strict=False)
        )
        kinds = "fiub" if wanted.dtype.startswith("float") else "iub"
        if array.shape != shape or array.ndim != len(wanted.shape) or array.dtype.kind not in kinds:
            what = "numbers" if "f" in kinds else "whole numbers"
            raise InputError(
                f"an input {array.dtype} {list(array.shape)} for {self.name}: expected {what} "
                f"{wanted}"
            )
        for each in self.symbols:
            found = symbols.get(each.name, each.least)
            if found < each.least or (each.largest is not None and found > each.largest):
                most = "more" if each.largest is None else str(each.largest)
                raise InputError(
                    f"{each.name} = {found} for {self.name}: expected {each.least} to {most}"
                )
        with np.errstate(all="ignore"):
            fitted = np.ascontiguousarray(array, dtype=wanted.dtype).reshape(array.shape)
        if "f" not in kinds and not np.array_equal(fitted, array):
            raise InputError(f"an input for {self.name} has numbers that no {wanted.dtype} holds")
        return fitted

    def facts(self) -> dict[str, int | str]:
        """Inputs and number of classes."""
        return {"input": self.signature, "labels": len(self.labels)}

    def sizes_in(
        self, shapes: Mapping[str, Sequence[Any]], output: str
    ) -> Iterator[tuple[str, Any, Any]]:
        """The shape of each input."""
        for each in self.inputs:
            yield f"input {each.name}", each.shape, tuple(shapes.get(each.name, ()))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class StoredEncoderDecoder(StoredModel):
    """An encoder-decoder that reads one source and writes a text.

    Attributes
    ----------
    name, dtype, vocabulary, end_tokens, weights_hash
        As of :class:`StoredDecoder`.
    context_length
        Rows of the decoder's cache, and tokens of a source with its padding.
    start_tokens
        What the decoder begins with.
    padding
        The token behind the end of a short source.
    features
        Bins and frames of a source that is no text; the encoder halves the frames.
    rules
        What its folder says of the tokens that are written.
    """

    name: _Name
    dtype: _Dtype
    context_length: _Count
    vocabulary: _Count
    start_tokens: Annotated[tuple[_Token, ...], Meta(min_length=1, max_length=64)]
    end_tokens: Annotated[frozenset[_Token], Meta(max_length=1 << 16)]
    padding: _Token
    features: tuple[_Count, _Count] | None
    weights_hash: _Name
    workload: Literal["encoder_decoder"] = "encoder_decoder"
    rules: TokenRules = field(default_factory=TokenRules)

    @property
    def positions(self) -> int:
        """Positions of the encoder's states."""
        return self.context_length if self.features is None else self.features[1] // 2

    def prepare_source(self, source: Sequence[int] | Array) -> dict[str, Array]:
        """Inputs of ``encode`` without state: ids and mask of a text, or features.

        Raises
        ------
        InputError
            If it does not fit the encoder.
        """
        if self.features is not None:
            array = np.asarray(source)
            if array.shape != self.features or array.dtype.kind != "f":
                raise InputError(
                    f"a source {array.dtype} {list(array.shape)} for {self.name}: expected "
                    f"features {list(self.features)}"
                )
            return {"features": np.ascontiguousarray(array[None], dtype=self.dtype)}
        if not 0 < len(source) <= self.context_length:
            raise InputError(
                f"a source of {len(source)} tokens for {self.name}: expected 1 to "
                f"{self.context_length} (--context)"
            )
        self.check_tokens([int(token) for token in source])
        ids = np.full((1, self.context_length), self.padding, dtype=np.int32)
        mask = np.full((1, 1, 1, self.context_length), MASKED[self.dtype], dtype=self.dtype)
        ids[0, : len(source)] = source
        mask[..., : len(source)] = 0.0
        return {"source_ids": ids, "source_mask": mask}

    def prepare_step(
        self, source: Mapping[str, Array], token_id: int, position: int
    ) -> dict[str, Array]:
        """Inputs of ``decode`` without state, after :meth:`prepare_source` gave `source`."""
        self.check_tokens((token_id,))
        inputs = entry_inputs(
            (token_id,), position, context_length=self.context_length, dtype=self.dtype
        )
        masks = {"source_mask"} & source.keys()
        return inputs | {name: source[name] for name in masks}

    def check_length(self, new_tokens: int) -> None:
        """Raise :class:`InputError` if that many new tokens do not fit the decoder's cache."""
        needed = len(self.start_tokens) + new_tokens - 1
        if new_tokens < 1 or needed > self.context_length:
            raise InputError(
                f"{new_tokens} new tokens for {self.name}: expected 1 to "
                f"{self.context_length - len(self.start_tokens) + 1} (--context)"
            )

    def check_tokens(self, token_ids: Sequence[int]) -> None:
        """Raise :class:`InputError` if a token is not in the vocabulary."""
        for token in token_ids:
            if not 0 <= token < self.vocabulary:
                raise InputError(
                    f"token {token} is not in the vocabulary of {self.name}: expected 0 to "
                    f"{self.vocabulary - 1}"
                )

    def facts(self) -> dict[str, int | str]:
        """Context, vocabulary, and the source."""
        source = "text" if self.features is None else " x ".join(map(str, self.features))
        return {"context": self.context_length, "vocabulary": self.vocabulary, "source": source}

    def sizes_in(
        self, shapes: Mapping[str, Sequence[Any]], output: str
    ) -> Iterator[tuple[str, Any, Any]]:
        """Context, vocabulary and source."""
        if MODEL_INPUTS[2] in shapes:
            yield "context", (self.context_length,), tuple(shapes[MODEL_INPUTS[2]])
            yield "vocabulary", (self.vocabulary,), tuple(shapes[output][-1:])
        elif self.features is not None:
            yield "source", (1, *self.features), tuple(shapes.get("features", ()))
        else:
            yield "source", (1, self.context_length), tuple(shapes.get("source_ids", ()))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"end_tokens": sorted(self.end_tokens)}


_KINDS: Final[Mapping[str, type[StoredModel]]] = {
    "decoder": StoredDecoder,
    "encoder": StoredEncoder,
    "encoder_decoder": StoredEncoderDecoder,
    "module": StoredModule,
    "recurrent": StoredRecurrent,
    "stepped": StoredStepped,
}


def read_stored(data: object) -> StoredModel:
    """Read back what any :meth:`StoredModel.to_json` gave, trusting nothing in it.

    Raises
    ------
    InputError
        If it is something else.
    """
    kind = data.get("workload", "decoder") if isinstance(data, dict) else ""
    found = _KINDS.get(kind) if isinstance(kind, str) else None
    if found is None or not isinstance(data, dict):
        raise InputError(
            f"a stored model: workload {kind!r} is not known: expected {', '.join(_KINDS)}"
        )
    return found.from_json(data)


def decode_hook(kind: type, data: object) -> Any:
    """What ``msgspec`` calls for a field that holds a :class:`StoredModel`."""
    if kind is StoredModel:
        try:
            return read_stored(data)
        except InputError as error:
            raise ValueError(str(error)) from error
    raise NotImplementedError(kind)
