"""What distinguishes one family of models from another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from tapml.models.families.masks import plain
from tapml.models.families.published import Published
from tapml.models.stored import Measure

if TYPE_CHECKING:
    from torch import Tensor, nn

WorkloadKind: TypeAlias = Literal[
    "decoder", "encoder", "encoder_decoder", "module", "recurrent", "stepped"
]


class CacheShape(NamedTuple):
    """The cache of one layer: heads, and elements of a key's and of a value's head."""

    heads: int
    key_size: int
    value_size: int


def even_cache(config: Any) -> tuple[CacheShape, ...]:
    """The same key and value heads in every layer."""
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (CacheShape(heads, int(size), int(size)),) * int(config.num_hidden_layers)


def full_cache(config: Any) -> tuple[CacheShape, ...]:
    """A key and value head for each query head, whatever a file says that the class never reads."""
    size = int(config.hidden_size) // int(config.num_attention_heads)
    shape = CacheShape(int(config.num_attention_heads), size, size)
    return (shape,) * int(config.num_hidden_layers)


def own_state(
    module: Any, token_ids: Tensor, state: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    """A module whose forward takes and gives its state."""
    output = module(input_ids=token_ids, state=state)
    return output.logits, output.state


# transformers' other ways depend on data: how many tokens an expert has.
BATCHED_EXPERTS: Final = (("experts_implementation", "batched_mm"),)


@dataclass(frozen=True, kw_only=True)
class Family:
    """An architecture: its configuration, names, cache and masks.

    Attributes
    ----------
    architectures
        Names of its classes, as ``architectures`` in ``config.json`` has them.
    workload
        How it is run and compared (:mod:`tapml.workloads`).
    measure
        Of an encoder: what its output is compared by.
    vocabulary, width, layers, heads, kv_heads, positions
        Names of sizes in ``config.json``; empty if the family has no such size.
    other_names
        Sizes that some files call otherwise: each name, and the other, which goes before it.
    embedding
        The weight ``[vocabulary, width]``.
    layer
        What the names of a layer's weights begin with, ``{}`` for its number.
    tokenizer
        The file of its tokenizer in a folder.
    prefix
        What the names in some files lack.
    cache
        The cache of each layer, from the ``transformers`` configuration.
    state
        Of a recurrent model: shapes of all state by name, in the order of its module. Of a stepped
        decoder: those of what it keeps besides keys and values.
    step
        Of a recurrent model: logits ``[1, S, vocabulary]`` and state after the tokens, from the
        module, tokens ``[1, S]`` and the state before them.
    arguments
        What ``forward`` takes besides tokens and cache, from the module, ``position_ids`` int32
        ``[1, S]`` and the causal mask ``[1, 1, S, T]``: positions, masks for each kind of layer.
    counted
        Whether its forward asks the cache how many tokens it has, and takes no positions.
    whole
        Whether its forward keeps nothing and reads the whole text in every run.
    cross
        Of an encoder-decoder: the layers that make the keys and values of each cross-attention.
    features
        Of one that reads no text: bins and frames of its features, from the configuration.
    image
        Of a module that reads images: their channels, height and width, from the configuration.
    several
        Whether its forward moves as it is, of whatever inputs it runs with.
    longest
        Tokens that a module's own tables hold, where that is fewer than the configuration says.
    around
        What holds while an entry runs, and not in the class's own forward.
    prepare
        Changes a module after it is loaded, before its entries are exported.
    by_weights
        Settles a configuration by the names of the stored weights.
    register
        Makes a class of tapml's own known to ``transformers``.
    own_class
        Gives the class if it is tapml's own; a plain module's takes ``config.json``.
    tried
        Whether it is in no file, so that only the class knows its names.
    candidates
        Of one that is in no file: what `arguments` may be, to be tried.
    published
        Of one whose class has other names: how its folder becomes that of `own_class`.
    loading
        Further arguments of ``from_pretrained``.
    """

    architectures: tuple[str, ...]
    workload: WorkloadKind = "decoder"
    measure: Measure = "classes"
    vocabulary: str = "vocab_size"
    width: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    kv_heads: str = "num_key_value_heads"
    positions: str = "max_position_embeddings"
    other_names: tuple[tuple[str, str], ...] = ()
    embedding: str = "model.embed_tokens.weight"
    layer: str = "model.layers.{}."
    tokenizer: str = "tokenizer.json"
    prefix: str = ""
    cache: Callable[[Any], tuple[CacheShape, ...]] = even_cache
    state: Callable[[Any], Mapping[str, tuple[int, ...]]] = lambda _: {}
    step: Callable[[nn.Module, Tensor, Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]] = (
        own_state
    )
    arguments: Callable[[nn.Module, Tensor, Tensor], Mapping[str, Any]] = plain
    counted: bool = False
    whole: bool = False
    cross: Callable[[Any], Sequence[tuple[Any, Any]]] = lambda _: ()
    features: Callable[[Any], tuple[int, int]] | None = None
    image: Callable[[Any], tuple[int, ...]] | None = None
    several: bool = False
    longest: Callable[[nn.Module], int | None] = lambda _: None
    around: Callable[[Any], AbstractContextManager[None]] = nullcontext
    prepare: Callable[[nn.Module], None] = lambda _: None
    by_weights: Callable[[Any, Iterable[str]], None] = lambda _config, _names: None
    register: Callable[[], None] = lambda: None
    own_class: Callable[[], Any] | None = None
    tried: bool = False
    candidates: tuple[Callable[[nn.Module, Tensor, Tensor], Mapping[str, Any]], ...] = ()
    published: Published | None = None
    loading: tuple[tuple[str, Any], ...] = ()

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Keys of ``config.json`` that are sizes, and the largest value of each."""
        bounds = (
            (self.vocabulary, 1 << 22),
            (self.width, 1 << 17),
            (self.layers, 1 << 10),
            (self.heads, 1 << 12),
        )
        return tuple((name, largest) for name, largest in bounds if name)
