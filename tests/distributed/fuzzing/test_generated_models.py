"""Generated models: the same seed gives the same, every part of one is a model, frozen stays."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.distributed.fuzzing.blocks import BLOCKS
from tapml.distributed.fuzzing.generating import generate
from tapml.distributed.fuzzing.genome import Genome, Network, Recommender, Table
from tapml.distributed.fuzzing.shrinking import smaller_than
from tapml.distributed.fuzzing.source import source_of


def _trained(genome: Genome) -> tuple[Any, Any]:
    """The weights before and after the step of a model's job."""
    module = ModuleType("generated")
    exec(compile(source_of(genome, "A model."), "job", "exec"), vars(module))
    model = module.model()
    before = {name: value.clone() for name, value in model.named_parameters()}
    module.step(model, module.batch(), module.optimizer(model))
    return before, model


@pytest.mark.parametrize("kind", ["chain", "cell", "block"])
def test_networks_of_all_kinds_train(kind: str) -> None:
    for index in range(6):
        genome = generate(kind, 1, index, 4, mixing=True)
        before, model = _trained(genome)

        assert genome == generate(kind, 1, index, 4, mixing=True)
        frozen = [name for name, each in model.named_parameters() if not each.requires_grad]
        assert all(torch.equal(before[name], model.get_parameter(name)) for name in frozen)
        assert all(each.grad is not None for each in model.parameters() if each.requires_grad), (
            "a layer that nothing depends on"
        )


def test_each_block_is_drawn() -> None:
    drawn = [generate("block", 0, index, 4, mixing=False) for index in range(0, 400, 2)]

    assert {gene.layer for each in drawn for gene in each.genes} >= set(BLOCKS)  # type: ignore[union-attr]


@settings(max_examples=8, deadline=None)
@given(st.data(), st.integers(0, 30), st.sampled_from(["chain", "block"]))
def test_every_part_of_a_network_is_a_network(data: st.DataObject, index: int, kind: str) -> None:
    genome = generate(kind, 2, index, 4, mixing=False)

    _trained(data.draw(smaller_than(genome)))


def test_tables_span_all_ranges_of_the_paper() -> None:
    found = [generate("dlrm", 0, index, None, mixing=False) for index in range(0, 800, 2)]
    models = [each for each in found if isinstance(each, Recommender)]
    tables = [table for each in models for table in each.tables]

    assert {each.samples for each in models} == {2400}
    assert {sum(table.weighted for table in each.tables) for each in models} == {1, 2, 3, 4, 5}
    assert {sum(not table.weighted for table in each.tables) for each in models} == {1, 2, 3, 4, 5}
    assert min(each.rows for each in tables) <= 5
    assert max(each.rows for each in tables) >= 995
    assert {each.dimension % 4 for each in tables} == {0}
    assert min(each.dimension for each in tables) == 4
    assert max(each.dimension for each in tables) == 1000
    assert {each.mean for each in models} == {True, False}


def test_tables_train_with_empty_bags_and_a_genome_is_plain_data() -> None:
    table = Table(rows=5, dimension=4, longest=2)
    weighted = msgspec.structs.replace(table, weighted=True, frozen=True)
    genome = Recommender(
        tables=(table, weighted), collection=False, mean=True, dense=(3, 2), over=2, samples=8
    )
    before, model = _trained(genome)

    assert torch.equal(before["bags.1.weight"], model.bags[1].weight)
    assert not torch.equal(before["bags.0.weight"], model.bags[0].weight)
    kept = msgspec.json.decode(msgspec.json.encode(genome), type=Network | Recommender)
    assert kept == genome
