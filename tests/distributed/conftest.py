"""Jobs written for a test, and one warm pool for all checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tapml.distributed.checking import check, open_pool
from tapml.distributed.results import Check
from tapml.isolate.pool import Pool

CheckJob: TypeAlias = Callable[..., Check]

_WARM: list[Pool] = []
_PLANTED = """
from tests.distributed.jobs import planted
from tests.distributed.jobs.planted import *
planted.FAULT = {fault!r}
STEPS = {steps}
"""
PLAIN_JOB = """
import torch
from torch import nn

def model():
    return nn.Linear(4, 2)

def batch():
    return torch.randn(8, 4)

def step(model, batch, optimizer):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def warm_pool() -> Pool:
    if not _WARM:
        _WARM.append(open_pool())
    return _WARM[0]


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close the pool after the folder's last test, so that its CPU time counts there."""
    folder = Path(__file__).parent
    if nextitem is None or not nextitem.path.is_relative_to(folder):
        while _WARM:
            _WARM.pop().close()


@pytest.fixture
def check_job(warm_pool: Pool, tmp_path: Path) -> CheckJob:
    """Checks a job: a plain one, with the definitions in `code` in place of its own."""

    def run(code: str = "", **options: Any) -> Check:
        path = tmp_path / "job.py"
        path.write_text(PLAIN_JOB + code)
        return check(path, pool=warm_pool, **options)

    return run


@pytest.fixture
def check_planted(warm_pool: Pool, tmp_path: Path) -> CheckJob:
    """Checks the job with a planted fault."""

    def run(fault: str, steps: int = 1, **options: Any) -> Check:
        path = tmp_path / "planted_job.py"
        path.write_text(_PLANTED.format(fault=fault, steps=steps))
        return check(path, pool=warm_pool, **options)

    return run
