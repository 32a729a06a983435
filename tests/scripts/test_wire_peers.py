from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest

from scripts.wire_peers import bare_relay, bare_websockets, bare_zmq, raw_socket, tapml
from scripts.wire_peers.process import ROUND_BYTES, Peer, Windows

PEERS = (
    raw_socket.open_peer,
    bare_zmq.open_peer,
    bare_relay.open_peer,
    bare_websockets.open_peer,
    tapml.open_zmq,
)


@pytest.mark.parametrize("open_peer", PEERS, ids=lambda each: each.__module__.split(".")[-1])
def test_each_transfer_has_bytes_of_its_own_at_the_other_end(
    open_peer: Callable[[], AbstractContextManager[Peer]],
) -> None:
    nbytes = ROUND_BYTES // 4
    tensors = list(np.random.default_rng(5).integers(0, 256, (4, nbytes), np.uint8))
    with open_peer() as peer:
        for tensor in tensors:
            peer.upload(tensor)
        # Once round: the first window is the next again.
        for tensor in tensors:
            assert np.array_equal(peer.download(nbytes), tensor)


def test_windows_follow_one_another_and_a_large_one_begins_another() -> None:
    windows = Windows()
    starts = [windows.start(nbytes) for nbytes in (1, 2, ROUND_BYTES, 5, 2 * ROUND_BYTES, 1)]
    assert starts == [0, 1, 0, 0, 0, 0]
