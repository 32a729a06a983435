"""A generated model as a job: a Python file that needs PyTorch (and TorchRec), and no tapml."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from tapml.distributed.fuzzing.blocks import CLASSES as CLASSES_OF_BLOCKS
from tapml.distributed.fuzzing.blocks import KNOWN
from tapml.distributed.fuzzing.genome import Gene, Genome, Network, Recommender
from tapml.distributed.fuzzing.layers import CLASSES as CLASSES_OF_LAYERS
from tapml.distributed.fuzzing.layers import Shape, fit

_CLASSES: Final = {**CLASSES_OF_LAYERS, **CLASSES_OF_BLOCKS}
RATE: Final = 0.5
"""Learning rate of generated jobs, plain SGD."""

_STEP: Final = """

def optimizer(model):
    trained = [each for each in model.parameters() if each.requires_grad]
    return torch.optim.SGD(trained, lr={rate})


def step(model, batch, optimizer):
    optimizer.zero_grad()
    wanted = batch["score"]
    ((model(*[batch[name] for name in INPUTS]) - wanted) ** 2).mean().backward()
    optimizer.step()
"""
_MODEL: Final = """

def model():
    network = Network()
    for name in {frozen!r}:
        network.get_submodule(name).requires_grad_(False)
    return network
"""


@dataclass(frozen=True)
class Node:
    """A layer in its place: its source, the nodes it takes, the shape it gives."""

    source: str
    inputs: tuple[int, ...]
    shape: Shape
    frozen: bool = False


@dataclass
class Graph:
    """A network under construction; node 0 is the input."""

    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def of(cls, network: Network) -> Graph:
        """The graph of a network, without the genes that do not fit."""
        graph = cls([Node("", (), network.shape)])
        if network.tokens:
            embedded = f"nn.Embedding({network.tokens}, {network.outputs})"
            graph.nodes.append(Node(embedded, (0,), (*network.shape, network.outputs)))
        for gene in network.genes:
            graph.add(gene)
        return graph

    @property
    def shape(self) -> Shape:
        """What the last node gives."""
        return self.nodes[-1].shape

    def add(self, gene: Gene) -> bool:
        """Add a layer; False if it does not fit."""
        # Tokens are no numbers: only the embedding takes them.
        first = 1 if len(self.nodes) > 1 and "Embedding" in self.nodes[1].source else 0
        last = len(self.nodes) - 1
        taken = max(last - gene.back, first)
        inputs: tuple[int, ...] = (taken,)
        if KNOWN[gene.layer].inputs == 2:
            inputs = (last, taken)
            if self.nodes[taken].shape != self.nodes[last].shape:
                return False
        made = fit(KNOWN[gene.layer], self.nodes[taken].shape, gene.size)
        if made is not None:
            self.nodes.append(Node(made[0], inputs, made[1], gene.frozen))
        return made is not None


def source_of(genome: Genome, title: str) -> str:
    """The text of the job."""
    made = _network(genome) if isinstance(genome, Network) else _recommender(genome)
    return f'"""{title}"""\n\n{made}{_STEP.format(rate=RATE)}'


def _network(network: Network) -> str:
    graph = Graph.of(network)
    nodes = list(graph.nodes)
    if len(graph.shape) > 1:
        nodes.append(Node("nn.Flatten()", (len(nodes) - 1,), (math.prod(graph.shape),)))
    head = f"nn.Linear({nodes[-1].shape[0]}, {network.outputs})"
    nodes.append(Node(head, (len(nodes) - 1,), (network.outputs,)))
    layers = _reached(nodes)
    used = {name for _, node in layers for name in _CLASSES if node.source.startswith(f"{name}(")}
    classes = "".join(f"\n\n{text}" for name, text in _CLASSES.items() if name in used)
    build = "\n".join(f"        self.n{place} = {node.source}" for place, node in layers)
    run = "\n".join(
        f"        n{place} = self.n{place}({', '.join(f'n{each}' for each in node.inputs)})"
        for place, node in layers
    )
    frozen = [f"n{place}" for place, node in layers if node.frozen]
    shape = ", ".join(map(str, (network.samples, *network.shape)))
    recomputed = "import torch.utils.checkpoint\n" if "Recomputed" in used else ""
    drawn = f"torch.randint({network.tokens}, ({shape},))" if network.tokens else None
    return (
        f'import torch\n{recomputed}from torch import nn\n\nINPUTS = ("x",)\n{classes}\n\n'
        "class Network(nn.Module):\n"
        f"    def __init__(self):\n        super().__init__()\n{build}\n\n"
        f"    def forward(self, n0):\n{run}\n        return n{len(nodes) - 1}\n"
        + _MODEL.format(frozen=frozen)
        + "\n\ndef batch():\n"
        f'    return {{"x": {drawn or f"torch.randn({shape})"}, '
        f'"score": torch.rand({network.samples}, {network.outputs})}}\n'
    )


def _reached(nodes: list[Node]) -> list[tuple[int, Node]]:
    """The layers that the last one depends on, in order: others would get no gradient."""
    reached = {len(nodes) - 1}
    for place in range(len(nodes) - 1, 0, -1):
        if place in reached:
            reached.update(nodes[place].inputs)
    return [(place, node) for place, node in enumerate(nodes) if place in reached and place]


def _recommender(genome: Recommender) -> str:
    """Features are padded tensors; a bag uses the first `lengths` of them."""
    plain = [place for place, each in enumerate(genome.tables) if not each.weighted]
    weighted = [place for place, each in enumerate(genome.tables) if each.weighted]
    groups = [
        (places, is_weighted)
        for places, is_weighted in ((plain, False), (weighted, True))
        if places
    ]
    if genome.collection:
        frozen = [
            f"{_group_name(is_weighted)}.embedding_bags.t{place}"
            for places, is_weighted in groups
            for place in places
            if genome.tables[place].frozen
        ]
    else:
        frozen = [f"bags.{place}" for place, each in enumerate(genome.tables) if each.frozen]
    frozen += ["dense"] if genome.frozen_dense else []
    width = sum(each.dimension for each in genome.tables) + genome.dense[1]
    longest = max((each.longest for each in genome.tables), default=1)
    imports = (
        "from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType\n"
        "from torchrec.modules.embedding_modules import EmbeddingBagCollection\n"
        "from torchrec.sparse.jagged_tensor import KeyedJaggedTensor\n"
        if genome.collection
        else ""
    )
    build = _collections(genome, groups) if genome.collection else _bags(genome)
    run = _run_collections(groups) if genome.collection else _run_bags(genome)
    samples = genome.samples
    rows = [each.rows for each in genome.tables]
    lengths = [each.longest for each in genome.tables]
    return (
        f"import torch\nfrom torch import nn\n{imports}\n"
        'INPUTS = ("dense", "indices", "lengths", "weights")\n'
        f"ROWS = {rows}\nLONGEST = {lengths}\n\n\n"
        "class Network(nn.Module):\n"
        f"    def __init__(self):\n        super().__init__()\n{build}"
        f"        self.dense = nn.Linear({genome.dense[0]}, {genome.dense[1]})\n"
        f"        self.over = nn.Linear({width}, {genome.over})\n\n"
        "    def forward(self, dense, indices, lengths, weights):\n"
        f"        used = torch.arange({longest}) < lengths[..., None]\n"
        f"        found = [self.dense(dense)]\n{run}"
        "        return torch.sigmoid(self.over(torch.cat(found, 1)).mean(1))\n"
        + _MODEL.format(frozen=frozen)
        + "\n\ndef batch():\n"
        "    indices, lengths = [], []\n"
        "    for rows, longest in zip(ROWS, LONGEST):\n"
        f"        indices.append(torch.randint(rows, ({samples}, {longest})))\n"
        f"        lengths.append(torch.randint(longest + 1, ({samples},)))\n"
        "    return {\n"
        f'        "dense": torch.rand({samples}, {genome.dense[0]}),\n'
        '        "indices": torch.stack(indices, 1),\n'
        '        "lengths": torch.stack(lengths, 1),\n'
        f'        "weights": torch.rand({samples}, {len(rows)}, {longest}),\n'
        f'        "score": torch.rand({samples}),\n'
        "    }\n"
    )


def _group_name(is_weighted: bool) -> str:
    return "weighted" if is_weighted else "sparse"


def _collections(genome: Recommender, groups: list[tuple[list[int], bool]]) -> str:
    text = ""
    for places, is_weighted in groups:
        pooling = "MEAN" if genome.mean and not is_weighted else "SUM"
        tables = "".join(
            f"                EmbeddingBagConfig(\n"
            f'                    name="t{place}",\n'
            f"                    embedding_dim={genome.tables[place].dimension},\n"
            f"                    num_embeddings={genome.tables[place].rows},\n"
            f'                    feature_names=["f{place}"],\n'
            f"                    pooling=PoolingType.{pooling},\n"
            f"                ),\n"
            for place in places
        )
        text += (
            f"        self.{_group_name(is_weighted)} = EmbeddingBagCollection(\n"
            f"            is_weighted={is_weighted},\n            tables=[\n{tables}"
            "            ],\n        )\n"
        )
    return text


def _run_collections(groups: list[tuple[list[int], bool]]) -> str:
    text = ""
    for places, is_weighted in groups:
        name = _group_name(is_weighted)
        weights = "weights[:, places].permute(1, 0, 2)[chosen]" if is_weighted else "None"
        text += (
            f"        places = {places}\n"
            "        chosen = used[:, places].permute(1, 0, 2)\n"
            f"        {name} = self.{name}(\n            KeyedJaggedTensor(\n"
            f"                keys={[f'f{place}' for place in places]},\n"
            "                values=indices[:, places].permute(1, 0, 2)[chosen],\n"
            f"                weights={weights},\n"
            "                lengths=lengths[:, places].t().reshape(-1).int(),\n"
            "            )\n        )\n"
            f'        found += [{name}[f"f{{place}}"] for place in places]\n'
        )
    return text


def _bags(genome: Recommender) -> str:
    bags = "".join(
        f"                nn.EmbeddingBag({each.rows}, {each.dimension}, "
        f'mode="{"mean" if genome.mean and not each.weighted else "sum"}", '
        "include_last_offset=True),\n"
        for each in genome.tables
    )
    return f"        self.bags = nn.ModuleList(\n            [\n{bags}            ]\n        )\n"


def _run_bags(genome: Recommender) -> str:
    weighted = [each.weighted for each in genome.tables]
    return (
        f"        weighted = {weighted}\n"
        "        for place, bag in enumerate(self.bags):\n"
        "            chosen = used[:, place]\n"
        "            ends = lengths[:, place].cumsum(0)\n"
        "            offsets = torch.cat([torch.zeros(1, dtype=torch.long), ends])\n"
        "            scale = weights[:, place][chosen] if weighted[place] else None\n"
        "            found.append(bag(indices[:, place][chosen], offsets, scale))\n"
    )
