"""A migrated plan against its source, with a fault planted in the migrated one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tapml
from tapml.backends.finding import backends
from tests.comparing.planted import install_backend
from tests.offload.sessions import FinishedSession

_DESCRIPTION = "from tapml.backends.session import DESCRIPTION"
_RUNNER = """
from tapml.backends.session import runner as session

WEIGHT = "model.layers.0.self_attn.q_proj.weight"


def load(model, variant):
    open_kept = session.open_kept

    def scaled(folder):
        kept = open_kept(folder)
        (name,) = (each for each in kept.weights if each.endswith(WEIGHT))
        object.__setattr__(kept, "weights", {**kept.weights, name: kept.weights[name] * 2})
        return kept

    session.open_kept = scaled
    return session.load(model, "target")
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install_backend(tmp_path / "site", "scaled", _DESCRIPTION, _RUNNER)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    backends.cache_clear()
    yield
    backends.cache_clear()


@pytest.mark.usefixtures("planted")
def test_a_plan_agrees_with_its_source_and_a_fault_is_named_at_its_call_site(
    finished: FinishedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(finished.cache))
    names = ["session:source", "session:target", "scaled"]
    comparison = tapml.compare(finished.folder, names)
    found = {each.backends: each for each in comparison.pairs}
    moved = found["session:source", "session:target"]
    assert (moved.status, moved.metrics["top1"]["agreement"]) == ("agree", 1)
    for healthy in names[:2]:
        pair = found[healthy, "scaled"]
        assert (pair.status, pair.blamed) == ("inconsistent", "scaled")
        assert pair.layer == "layers.0.self_attn.q_proj/matmul_transposed"
        assert pair.guilty == (pair.layer,)
