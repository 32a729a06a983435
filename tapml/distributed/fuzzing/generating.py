"""Draws models: DLRM-like over all ranges of D3's table I, chains with skips, cells, blocks."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from tapml.distributed.fuzzing.blocks import BLOCKS, KNOWN
from tapml.distributed.fuzzing.genome import Gene, Genome, Network, Recommender, Table
from tapml.distributed.fuzzing.layers import IMAGE, LAYERS
from tapml.distributed.fuzzing.source import Graph

TABLES: Final = ("dlrm", "bags")
KINDS: Final = (*TABLES, "chain", "cell", "block")
"""`dlrm` has TorchRec's collections of tables, `bags` the same as single EmbeddingBags."""
PUBLISHED_SAMPLES: Final = 2400
"""Of the paper's batches (section III-D)."""
NETWORK_SAMPLES: Final = 48
_LONGEST_BAG: Final = 4
_BLOCK_SHAPES: Final[tuple[tuple[int, ...], ...]] = ((12,), (6, 8), (8, 16), (3, 8, 8))
_NORMS: Final = ("LayerNorm", "GroupNorm", "GELU", "Tanh")
_SHAPES: Final[tuple[tuple[int, ...], ...]] = ((8,), (5, 6), (3, 8, 8))


def generate(kind: str, seed: int, index: int, samples: int | None, *, mixing: bool) -> Genome:
    """The model of a kind, seed and index; an odd one is its predecessor with frozen layers.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    samples
        Of a batch; None for the paper's with tables, else :data:`NETWORK_SAMPLES`.
    mixing
        Whether BatchNorm and dropout are among the layers.
    """
    random = Random(f"{kind} {seed} {index // 2}")  # noqa: S311
    tables = kind in TABLES
    count = samples or (PUBLISHED_SAMPLES if tables else NETWORK_SAMPLES)
    if tables:
        found: Genome = _recommender(random, kind == "dlrm", count)
    else:
        draw = {"chain": _chain, "cell": _cells, "block": _blocks}[kind]
        found = draw(random, count, mixing)
    return _frozen(found, random) if index % 2 else found


def _recommender(random: Random, collection: bool, samples: int) -> Recommender:
    tables = [
        Table(
            rows=random.randint(1, 1000),
            dimension=4 * random.randint(1, 250),
            longest=random.randint(1, _LONGEST_BAG),
            weighted=weighted,
        )
        for weighted in (False, True)
        for _ in range(random.randint(1, 5))
    ]
    return Recommender(
        tables=tuple(tables),
        collection=collection,
        # TorchRec refuses means of single bags.
        mean=collection and random.random() < 0.5,
        dense=(random.randint(1, 1000), random.randint(1, 1000)),
        over=random.randint(1, 1000),
        samples=samples,
    )


def _start(random: Random, samples: int) -> Network:
    """A network of its inputs alone."""
    tokens = random.choice((0, 0, 0, 20))
    shape = (6,) if tokens else random.choice(_SHAPES)
    outputs = random.randint(2, 6)
    return Network(shape=shape, genes=(), outputs=outputs, samples=samples, tokens=tokens)


def _chain(random: Random, samples: int, mixing: bool) -> Network:
    network = _start(random, samples)
    graph = Graph.of(network)
    genes: list[Gene] = []
    names = [name for name, each in LAYERS.items() if mixing or not each.mixes]
    wanted = random.randint(3, 12)
    while len(genes) < wanted:
        # A skip reaches back; most layers take what is before them.
        back = random.randint(1, 4) if random.random() < 0.2 else 0
        name = random.choice(names)
        gene = Gene(layer=name, size=random.randint(1, 8), back=_back(name, back))
        if graph.add(gene):
            genes.append(gene)
    return msgspec.structs.replace(network, genes=tuple(genes))


def _cells(random: Random, samples: int, mixing: bool) -> Network:
    """Copies of one cell, a graph of layers that keep its shape, with pools between images."""
    network = _start(random, samples)
    width = Graph.of(network).shape[0]
    names = [name for name, each in LAYERS.items() if each.keeps and (mixing or not each.mixes)]
    graph = Graph.of(network)
    cell: list[Gene] = []
    wanted = random.randint(3, 6)
    while len(cell) < wanted:
        name, back = random.choice(names), random.randint(0, 2)
        gene = Gene(layer=name, size=width, back=_back(name, min(back, len(cell))))
        if graph.add(gene):
            cell.append(gene)
    cell.append(Gene(layer="Add", back=len(cell)))
    genes = list(cell)
    for _ in range(random.randint(1, 2)):
        if len(graph.shape) == IMAGE:
            genes.append(Gene(layer=random.choice(("MaxPool", "AvgPool"))))
        genes += cell
    return msgspec.structs.replace(network, genes=tuple(genes))


def _blocks(random: Random, samples: int, mixing: bool) -> Network:
    """Blocks one after another, with norms and activations between them, and some skips."""
    tokens = random.choice((0, 0, 30))
    network = Network(
        shape=(8,) if tokens else random.choice(_BLOCK_SHAPES),
        genes=(),
        outputs=random.randint(2, 5) * 4,
        samples=samples,
        tokens=tokens,
    )
    graph = Graph.of(network)
    genes: list[Gene] = []
    between = [*_NORMS, "BatchNorm", "Dropout"] if mixing else list(_NORMS)
    wanted = random.randint(2, 6)
    while sum(each.layer in BLOCKS for each in genes) < wanted:
        gene = Gene(layer=random.choice(list(BLOCKS)), size=random.randint(1, 8))
        if not graph.add(gene):
            continue
        genes.append(gene)
        for name in (random.choice(between), random.choice(("Add", "Concatenate"))):
            more = Gene(layer=name, back=2 if KNOWN[name].inputs == 2 else 0)
            if random.random() < 0.4 and graph.add(more):
                genes.append(more)
    return msgspec.structs.replace(network, genes=tuple(genes))


def _back(name: str, back: int) -> int:
    """A layer of two inputs takes two nodes."""
    return max(back, 1) if KNOWN[name].inputs == 2 else back


def _frozen(genome: Genome, random: Random) -> Genome:
    """The same model with about half of its layers frozen, at least one."""
    if isinstance(genome, Network):
        chosen = {random.randrange(len(genome.genes))}
        genes = tuple(
            msgspec.structs.replace(each, frozen=place in chosen or random.random() < 0.5)
            for place, each in enumerate(genome.genes)
        )
        return msgspec.structs.replace(genome, genes=genes)
    # A fused table cannot be frozen: TorchRec takes its step in backward. Single bags can.
    tables = tuple(
        msgspec.structs.replace(each, frozen=not genome.collection and random.random() < 0.5)
        for each in genome.tables
    )
    return msgspec.structs.replace(genome, tables=tables, frozen_dense=True)
