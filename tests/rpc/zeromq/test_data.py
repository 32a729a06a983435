"""The data connection that CURVE uses: libzmq's socket, behind the same protocol as ours."""

from __future__ import annotations

import pytest
import zmq

from tapml_rpc.zeromq.opening import DealerData
from tapml_targets.errors import DeviceLostError


def test_while_a_server_takes_nothing_a_sender_is_asked_whether_to_go_on() -> None:
    asked: list[int] = []

    def give_up_at_the_second() -> None:
        asked.append(len(asked))
        if len(asked) == 2:
            raise DeviceLostError("the watch has lost it")

    with zmq.Context() as context, context.socket(zmq.DEALER) as nowhere:
        data = DealerData(nowhere)
        with pytest.raises(DeviceLostError):
            data.send(b"header", b"chunk", give_up_at_the_second)
        assert not data.torn, "nothing of the message was sent"
    assert asked == [0, 1]
