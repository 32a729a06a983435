"""The model that the carver's tests run."""

from __future__ import annotations

import pytest

from tests.execute.small_llama import SmallLlama, small_llama


@pytest.fixture(scope="session")
def llama() -> SmallLlama:
    """A small Llama."""
    return small_llama()
