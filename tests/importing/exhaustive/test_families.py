"""Every family imports, and its plan computes what PyTorch computes at every call site."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.importing.importer import import_model
from tapml.models.huggingface import load_any
from tapml.rooting.rooting import root
from tests.models.families import SAMPLES, make_family


@pytest.mark.parametrize("family", sorted(SAMPLES))
def test_a_family_is_rooted(tmp_path: Path, family: str) -> None:
    model = load_any(make_family(tmp_path / "model", family))
    imported = import_model(model)
    report = root(model, imported)
    assert report.worst is not None
    assert report.worst.ratio < 1
    assert {each.entry for each in report.compared} == set(imported.plan.entries)


def test_heads_that_rotate_whole_leave_nothing_empty(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "gpt_neox", rotary_pct=1.0, num_hidden_layers=1)
    imported = import_model(load_any(folder))
    for operator in imported.plan.operators.values():
        assert all(0 not in parameter.shape for parameter in operator.parameters)
