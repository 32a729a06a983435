"""One pool for the tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tests.isolate.jobs import names


@pytest.fixture(scope="package")
def pool() -> Iterator[Pool]:
    environment = Environment(preload=("wave", "numpy"))
    with Pool(names(), workers=2, environment=environment) as opened:
        yield opened
