"""A small Llama with random weights and a cache of useful size, imported once per test process.

A plugin of every run: what takes seconds to import is imported when the model is made.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from tapml.compiler.reference_module import ReferenceModule
    from tapml.execute.arrays import Array
    from tapml.execute.executor import Executor
    from tapml.importing.imported import ImportedModel
    from tapml.models import LoadedModel
    from tapml.plan.graph_plan import GraphPlan
    from tapml_rpc.client import Session

PROMPTS = ((5, 17, 3, 99, 42, 8, 120), (64, 2, 2, 77), (11,))


class SmallLlama(NamedTuple):
    """A model, its plan and weights, and the plan's operators on this machine."""

    model: LoadedModel
    imported: ImportedModel
    reference: ReferenceModule

    @property
    def plan(self) -> GraphPlan:
        """Its plan."""
        return self.imported.plan

    @property
    def weights(self) -> dict[str, Array]:
        """The arrays of the plan's weights."""
        return dict(self.imported.weights)

    def executor(self, session: Session | None = None) -> Executor:
        """A new executor with nothing placed."""
        from tapml.execute.executor import Executor

        return Executor(self.plan, self.weights, self.reference, session)


def state_of(executor: Executor, name: str) -> Array:
    """A state tensor of an executor that has no device."""
    array = executor.snapshot_state()[name].array
    assert array is not None
    return array


@functools.cache
def small_llama() -> SmallLlama:
    """Two layers, grouped queries, odd sizes, 512 rows of cache (its repeated heads are large)."""
    from tapml.compiler.reference import compile_reference
    from tapml.importing.importer import import_model
    from tapml.models import load_model
    from tests.models.folders import make_folder

    with tempfile.TemporaryDirectory() as scratch:
        folder = make_folder(Path(scratch) / "model", max_position_embeddings=512)
        model = load_model(folder, context_length=512)
        imported = import_model(model)
    return SmallLlama(model, imported, compile_reference(imported.plan))


@pytest.fixture(scope="session")
def llama() -> SmallLlama:
    """The small Llama."""
    return small_llama()
