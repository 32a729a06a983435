"""One Oclgrind process for all tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tapml.check.checker import Checker, open_checker
from tapml_targets.errors import SetupError


@pytest.fixture(scope="session")
def checker() -> Iterator[Checker]:
    """Oclgrind; skips without it, and fails under ``TAPML_REQUIRE_DEVICES=1``."""
    stack = ExitStack()
    try:
        opened = stack.enter_context(open_checker("opencl"))
    except SetupError as error:
        if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
            pytest.fail(f"{error}; TAPML_REQUIRE_DEVICES=1 says there must be one")
        pytest.skip(str(error))
    with stack:
        yield opened
