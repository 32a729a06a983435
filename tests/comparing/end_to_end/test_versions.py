"""Two versions of one library are two backends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tapml
from tests.isolate.wheels import write_installed, write_wheel

_DESCRIPTION = """
from tapml.backends.description import Description

DESCRIPTION = Description(
    title="a library that scales", formats=(".scale",), packages={"scaling": "scaling>=1"}
)
"""
_RUNNER = """
import numpy as np
import scaling
from tapml.backends.runner import Input, Node


class Runner:
    def versions(self):
        return {"scaling": scaling.VERSION}

    def inputs(self):
        return [Input("x", (None, 2), "float32")]

    def nodes(self):
        return [Node("scaled", "Scale", (("x", 0),))]

    def run(self, inputs):
        return {"scaled": np.asarray(scaling.scale(inputs["x"]), np.float32)}

    def hidden(self, inputs):
        return {"scaled": [self.run(inputs)["scaled"]]}

    def replay(self, node, inputs):
        return [self.run({"x": inputs[0]})["scaled"]]


def load(model, variant):
    return Runner()
"""


@pytest.fixture
def scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backend of another distribution, without its library; versions of that."""
    site, wheels = tmp_path / "site", tmp_path / "wheels"
    package = site / "scaling_backend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_DESCRIPTION, encoding="utf-8")
    (package / "runner.py").write_text(_RUNNER, encoding="utf-8")
    metadata = site / "scaling_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: scaling-backend\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(
        "[tapml.backends]\nscaling = scaling_backend\n", encoding="utf-8"
    )
    for version, factor in (("1.0", 2), ("2.0", 3), ("2.1", 2)):
        text = f"VERSION = {version!r}\ndef scale(x): return x * {factor}\n"
        write_wheel(wheels, "scaling", version, {"scaling.py": text})
    write_installed(wheels, "numpy")
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.syspath_prepend(str(site))
    model = tmp_path / "model.scale"
    model.touch()
    return model


def test_a_version_that_computes_otherwise_is_blamed(scaling: Path) -> None:
    from tapml.backends.finding import backends

    backends.cache_clear()
    try:
        names = ["scaling@1", "scaling@2.0.0", "scaling@2.x"]
        comparison = tapml.compare(scaling, names, {"x": np.ones((3, 2), np.float32)})
    finally:
        backends.cache_clear()
    assert [each.versions["scaling"] for each in comparison.backends] == ["1.0", "2.0", "2.1"]
    assert {each.backends: (each.status, each.blamed) for each in comparison.pairs} == {
        ("scaling@1", "scaling@2.0.0"): ("inconsistent", "scaling@2.0.0"),
        ("scaling@1", "scaling@2.x"): ("agree", ""),
        ("scaling@2.0.0", "scaling@2.x"): ("inconsistent", "scaling@2.0.0"),
    }
