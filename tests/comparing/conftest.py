"""A model, its data, and a faulty backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml.backends.finding import backends
from tests.comparing.planted import install_planted
from tests.comparing.small_cnn import write_cnn


@pytest.fixture(scope="session")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX model."""
    return write_cnn(tmp_path_factory.mktemp("cnn"))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backend ``planted``, installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    install_planted(folder)
    monkeypatch.syspath_prepend(str(folder))
    backends.cache_clear()
    yield
    backends.cache_clear()
