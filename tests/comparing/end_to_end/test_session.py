"""A migrated plan against its source, with a fault planted in the migrated one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tapml
from tapml.backends.finding import backends
from tapml.comparing.result import Comparison
from tests.comparing.planted import install_backend
from tests.offload.sessions import FinishedSession

_DESCRIPTION = "from tapml.backends.session import DESCRIPTION"
_RUNNER = """
from tapml.backends.session import runner as session

WEIGHT = {weight!r}


def load(model, variant):
    open_kept = session.open_kept

    def scaled(folder):
        kept = open_kept(folder)
        (name,) = (each for each in kept.weights if each.endswith(WEIGHT))
        weights = {{**kept.weights, name: kept.weights[name] * 2}}
        object.__setattr__(kept, "weights", weights)
        return kept

    session.open_kept = scaled
    return session.load(model, "target")
"""


@contextmanager
def scaled_weight(folder: Path, monkeypatch: pytest.MonkeyPatch, weight: str) -> Iterator[None]:
    """The backend ``scaled``: the migrated plan with a weight of this name's ending doubled."""
    install_backend(folder, "scaled", _DESCRIPTION, _RUNNER.format(weight=weight))
    monkeypatch.syspath_prepend(str(folder))
    backends.cache_clear()
    yield
    backends.cache_clear()


def find_scaled(session: Path, layer: str) -> Comparison:
    """The migrated plan agrees with its source, and `scaled` is blamed at this node."""
    names = ["session:source", "session:target", "scaled"]
    comparison = tapml.compare(session, names)
    found = {each.backends: each for each in comparison.pairs}
    assert found["session:source", "session:target"].status == "agree"
    for healthy in names[:2]:
        pair = found[healthy, "scaled"]
        assert (pair.status, pair.blamed) == ("inconsistent", "scaled")
        assert (pair.layer, pair.guilty) == (layer, (layer,))
    return comparison


def test_a_plan_agrees_with_its_source_and_a_fault_is_named_at_its_call_site(
    finished: FinishedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(finished.cache))
    weight = "model.layers.0.self_attn.q_proj.weight"
    with scaled_weight(tmp_path / "site", monkeypatch, weight):
        comparison = find_scaled(finished.folder, "layers.0.self_attn.q_proj/matmul_transposed")
    assert comparison.pairs[0].metrics["top1"]["agreement"] == 1
