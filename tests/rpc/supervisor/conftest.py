"""A real server whose sessions come to harm; on the processor, unless a module says where else."""

from __future__ import annotations

import pytest

from tests.rpc.faults.servers import lasting_servers, server

__all__ = ["lasting_servers", "server"]


@pytest.fixture(scope="module")
def served_device() -> str:
    """The device that it serves."""
    return "cpu"
