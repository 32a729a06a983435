"""A session's client end, whichever binding is under it."""

from __future__ import annotations

import pytest
import zmq

from tapml_rpc import link as links
from tapml_rpc import wire
from tapml_rpc.client import connect
from tapml_rpc.link import Link
from tapml_rpc.transport import Unanswered
from tapml_rpc.watch import Describe, Watch
from tapml_rpc.welcome import Bounds, Welcome
from tapml_rpc.zeromq.opening import DealerData
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError, SetupError
from tapml_targets.limits import Limits
from tests.rpc.peers import ServerProcess


def never(describe: Describe) -> Watch:
    raise AssertionError("there is nothing to watch")


def test_a_data_connection_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_FIRST_SECONDS", 0.1)
    device = DeviceDescription("opencl", 0, "device", "vendor", "cpu", "1", Limits())
    welcome = Welcome(1, frozenset(), device, Bounds(), b"epoch", b"session", "")
    with (
        zmq.Context() as context,
        # As one whose only connection has gone: it never takes anything again.
        context.socket(zmq.DEALER) as nowhere,
        pytest.raises(SetupError, match="does not last: the server takes nothing"),
    ):
        Link("tcp://nowhere", welcome, DealerData(nowhere), Unanswered(), never)


def test_a_chunk_that_no_server_takes_is_refused_here_and_counts_for_nothing(
    server: ServerProcess,
) -> None:
    with connect(server.address) as session:
        link = session._link
        with pytest.raises(ProtocolError, match="send it in several messages"):
            link.send([["fence"]], bytes(wire.MAX_CHUNK_BYTES + 1))
        assert link.drain(), "nothing is on its way"
        session.fence()
