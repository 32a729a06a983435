"""Lies of strangers over ZeroMQ, of sessions over WebSocket, and of both with keys."""

import pytest

from tests.conftest import RequireDevice
from tests.rpc.end_to_end.test_fuzz import (
    test_a_server_stands_and_serves_others_whatever_is_said_to_it as check,
)


@pytest.mark.parametrize(
    ("binding", "session"), [("zmq", False), ("websocket", True), ("curve", False), ("curve", True)]
)
def test_a_server_stands_and_serves_others_whatever_is_said_to_it(
    require_device: RequireDevice, binding: str, session: bool
) -> None:
    check(require_device, binding, session)
