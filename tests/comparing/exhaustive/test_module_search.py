"""A whole search among the mutants of a torch module, with a fault planted in a backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tapml.backends.finding import backends
from tapml.backends.torch_graph import TorchGraph
from tapml.comparing.data import make_data
from tapml.comparing.fuzzing.search import fuzz
from tests.comparing.planted import install_backend

_DESCRIPTION = "from tapml.backends.torch_eager import DESCRIPTION"
_RUNNER = """
import torch
from tapml.backends.torch_eager.runner import load as load_eager


def load(model, variant):
    runner = load_eager(model, "math")
    for node in runner._graph._module.graph.nodes:
        if str(node.target).startswith("aten.relu."):
            node.target = torch.ops.aten.gelu.default
    runner._graph._module.recompile()
    return runner
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install_backend(tmp_path / "site", "gelu", _DESCRIPTION, _RUNNER)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    backends.cache_clear()
    yield
    backends.cache_clear()


@pytest.mark.usefixtures("planted")
def test_a_fault_is_found_once_and_shrunk_to_one_edit(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
    names = ["torch-eager", "torch-eager:math", "gelu"]
    found = fuzz(
        tmp_path / "found", names, model="digits-cnn", data=make_data({"x": images}), cases=8
    )
    (cause,) = found.causes
    assert cause.cause == "inconsistent at relu by gelu"
    assert len(cause.case) == 1
    kinds = [each.kind for each in TorchGraph(Path(cause.folder) / "model").nodes()]
    assert "relu" in kinds
