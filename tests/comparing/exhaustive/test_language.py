"""A language model on PyTorch: with a fault planted in one layer, and texts as its data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tapml
from tapml.backends.finding import backends
from tests.comparing.planted import install_backend

_DESCRIPTION = "from tapml.backends.torch_eager import DESCRIPTION"
_RUNNER = """
import torch
from tapml.backends.torch_eager.runner import load as load_eager


def load(model, variant):
    runner = load_eager(model, "math")
    (node,) = (each for each in runner._graph._module.graph.nodes if each.name == "silu_2")
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
def test_a_fault_in_one_layer_of_a_decoder_is_named_there(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("Return the number of items in a list.\nOpen a file\n")
    names = ["torch-eager", "torch-eager:flash", "gelu"]
    comparison = tapml.compare("pydoc-llama", names, texts)
    found = {each.backends: each for each in comparison.pairs}
    agreeing = found["torch-eager", "torch-eager:flash"]
    assert agreeing.status == "agree" and comparison.instances == 2
    assert agreeing.metrics["KL"]["largest"] < 1e-6
    assert agreeing.metrics["top1"]["agreement"] == 1
    for healthy in names[:2]:
        pair = found[healthy, "gelu"]
        assert (pair.layer, pair.layer_kind) == ("model.layers.2.mlp.act_fn/silu_2", "silu")
        assert (pair.status, pair.blamed) == ("inconsistent", "gelu")
        assert pair.metrics["KL"]["triggering"] == 2
