"""Generated models as data: small enough to keep, to change and to shrink."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Gene(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of a network.

    Attributes
    ----------
    layer
        A name in :data:`tapml.distributed.fuzzing.blocks.KNOWN`.
    size
        Features or channels that it gives, if it can choose.
    back
        Whose output it takes: 0 for the node before it, 1 for the one before that. A layer of two
        inputs takes the node before it as well.
    frozen
        Whether its parameters need no gradient.
    """

    layer: str
    size: int = 4
    back: int = 0
    frozen: bool = False


class Network(msgspec.Struct, frozen=True, kw_only=True, tag="network"):
    """A chain with skips, or stacked cells (Muffin's templates).

    Genes that do not fit where they stand are passed over, so that every part of a network is a
    network.

    Attributes
    ----------
    shape
        Of one sample: (features,), (steps, features) or (channels, height, width).
    tokens
        Size of the vocabulary of token inputs, whose shape is (steps,); 0 for real inputs.
    outputs
        Features of the last layer.
    """

    shape: tuple[int, ...]
    genes: tuple[Gene, ...]
    outputs: int
    samples: int
    tokens: int = 0


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """An embedding table of `rows` vectors; bags have 0 to `longest` entries."""

    rows: int
    dimension: int
    longest: int
    weighted: bool = False
    frozen: bool = False


class Recommender(msgspec.Struct, frozen=True, kw_only=True, tag="recommender"):
    """A DLRM-like model (D3, figure 3 and table I).

    Attributes
    ----------
    collection
        Whether the tables are TorchRec's EmbeddingBagCollections or single EmbeddingBags.
    mean
        Whether bags that are not weighted give means; else sums.
    dense
        Dense features, and features of the dense layer.
    over
        Features of the layer over all.
    """

    tables: tuple[Table, ...]
    collection: bool
    mean: bool
    dense: tuple[int, int]
    over: int
    samples: int
    frozen_dense: bool = False


Genome: TypeAlias = Network | Recommender
