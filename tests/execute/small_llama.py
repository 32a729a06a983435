"""A small Llama with random weights and a cache of useful size, imported once per test process."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import NamedTuple

from tapml.compiler.reference import ReferenceModule, compile_reference
from tapml.execute.arrays import Array
from tapml.execute.executor import Executor
from tapml.graph.importer import import_model
from tapml.graph.plan import GraphPlan
from tapml.models import LoadedModel, load_model
from tapml_rpc.client import Session
from tests.models.folders import make_folder

PROMPTS = ((5, 17, 3, 99, 42, 8, 120), (64, 2, 2, 77), (11,))


class SmallLlama(NamedTuple):
    """A model, its plan and weights, and the plan's operators on this machine."""

    model: LoadedModel
    plan: GraphPlan
    weights: dict[str, Array]
    reference: ReferenceModule

    def executor(self, session: Session | None = None) -> Executor:
        """A new executor with nothing placed."""
        return Executor(self.plan, self.weights, self.reference, session)


@functools.cache
def small_llama() -> SmallLlama:
    """Two layers, grouped queries, odd sizes, 512 rows of cache (its repeated heads are large)."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_folder(Path(scratch) / "model", max_position_embeddings=512)
        model = load_model(folder, context_length=512)
        imported = import_model(model)
    return SmallLlama(
        model, imported.plan, dict(imported.weights), compile_reference(imported.plan)
    )
