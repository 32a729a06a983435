"""One small Llama with random weights, imported once for all tests that look at its plan."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tapml.compiler.reference import ReferenceModule, compile_reference
from tapml.graph.imported import ImportedModel
from tapml.graph.importer import import_model
from tapml.models import LoadedModel, load_model
from tests.models.folders import make_folder


class Llama(NamedTuple):
    """A model, its plan, and the plan's operators on this machine."""

    model: LoadedModel
    imported: ImportedModel
    reference: ReferenceModule


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    """Two layers, grouped queries, odd sizes."""
    folder = make_folder(tmp_path_factory.mktemp("llama") / "model")
    model = load_model(folder)
    imported = import_model(model)
    return Llama(model, imported, compile_reference(imported.plan))
