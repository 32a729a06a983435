"""Device memory after a failure: what was skipped is not used again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tapml.execute.device import DeviceMemory
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import TapmlError
from tests.conftest import RequireDevice


@pytest.fixture(scope="module")
def session(require_device: RequireDevice) -> Iterator[Session]:
    require_device("opencl")
    with open_local("opencl") as opened:
        yield opened


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_buffer_whose_allocation_was_skipped_is_not_handed_out_again(
    session: Session, when: str
) -> None:
    memory = DeviceMemory(session)
    values = np.arange(16, dtype=np.float32)
    too_much = session.allocate(1 << 60)
    skipped = memory.acquire(values.nbytes)
    with pytest.raises(TapmlError):
        session.fence()
    if when == "before":
        del skipped
    memory.distrust()
    if when == "after":
        del skipped
    session.free(too_much)
    session.reset()
    again = memory.acquire(values.nbytes)
    memory.write(again, values)
    np.testing.assert_array_equal(np.frombuffer(memory.read(again), np.float32), values)
