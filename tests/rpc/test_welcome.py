"""A server's answer to a hello: what is none, and one of another release, are named as such."""

from __future__ import annotations

import pytest

from tapml_rpc import wire
from tapml_rpc.welcome import Welcome
from tapml_targets.errors import ProtocolError


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"type": "pong"}, "tcp://board:9 is not a tapml server: it sent no welcome"),
        ({"type": "welcome"}, "version must be an integer"),
        (
            # Whatever else it has: other versions may say it in another form.
            {"type": "welcome", "version": wire.VERSION - 1},
            f"tcp://board:9 speaks protocol version {wire.VERSION - 1}, this client {wire.VERSION}",
        ),
    ],
)
def test_another_answer_is_named(answer: wire.Header, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        Welcome.from_wire(wire.pack(answer), "tcp://board:9")
