"""tapml.carve: a model's tests in one call."""

from __future__ import annotations

from pathlib import Path

import pytest

import tapml
from tapml_targets.errors import InputError
from tests.conftest import RequireDevice


def test_only_what_the_filters_let_through_is_carved(tiny_model: Path, tmp_path: Path) -> None:
    with tapml.carve(
        tiny_model,
        tmp_path / "suite",
        tokens=[[1, 2, 3, 4]],
        new_tokens=3,
        operators=["*softmax*"],
        entries=["decode"],
    ) as suite:
        tests = list(suite.tests())
    assert tests
    assert {test.entry for test in tests} == {"decode"}
    assert all("softmax" in test.operator for test in tests)


def test_it_is_still_a_function_after_its_package_was_imported(
    tiny_model: Path, tmp_path: Path
) -> None:
    import tapml.carving.record

    assert tapml.carving.record is not None
    with pytest.raises(InputError, match="no operator matches"):
        tapml.carve(tiny_model, tmp_path / "suite", tokens=[[1, 2, 3]], operators=["nothing*"])


def test_a_suite_is_replayed_from_python(
    tiny_model: Path, tmp_path: Path, require_device: RequireDevice
) -> None:
    where = require_device("opencl")[0]
    with tapml.carve(tiny_model, tmp_path / "suite", tokens=[(1, 2, 3)], new_tokens=1):
        pass
    found = tapml.replay(
        tmp_path / "suite", target=tapml.opencl(where.index), operators=["softmax*"]
    )
    assert found.status == "pass"
    assert [each.operator for each in found.operators] == ["softmax"]
    assert found.to_json()["format"] == "tapml-replay/2"
