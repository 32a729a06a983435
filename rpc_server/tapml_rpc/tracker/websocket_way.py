"""The way out of a device that is relayed over WebSocket: one to the tracker, one to its server.

The tracker is a server and so is the device's own: what comes from either has no mask and goes to
the other with one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tapml_rpc.tracker.flow import Leg
from tapml_rpc.tracker.outbound import DIAL_SECONDS, Call, Way
from tapml_rpc.tracker.records import LEG_PATH, reachable
from tapml_rpc.tracker.websocket_leg import WebSocketLeg
from tapml_rpc.websocket.handshake import check_address, open_socket

if TYPE_CHECKING:
    from tapml_rpc.security.credentials import Credentials


def websocket_way(
    tracker: str, credentials: Credentials | None, server: str, certificate: str
) -> Way:
    """The way between a tracker's WebSocket door and the device's own server.

    Parameters
    ----------
    tracker
        ``ws://host:port`` or ``wss://host:port`` of the door.
    credentials
        Whom to trust there; the relay's own secrets stand for its token.
    server
        Address of the device's own server, which takes a lease's token where it wants one.
    certificate
        Fingerprint of its certificate; empty for none.

    Raises
    ------
    InputError
        If one of them is no address.
    """
    from tapml_rpc.security.tls import client_context

    outside_url = check_address(tracker) + LEG_PATH
    inside_url = reachable(check_address(server), "127.0.0.1")
    # Made once: reading the system's authorities takes a while.
    outside_context = (
        credentials.ssl_context() if credentials and tracker.startswith("wss://") else None
    )
    inside_context = client_context(fingerprint=certificate) if certificate else None

    def go(call: Call) -> tuple[Leg, Leg]:
        deadline = time.monotonic() + DIAL_SECONDS
        inside = open_socket(
            f"{inside_url}/{call.role}",
            deadline=deadline,
            token=call.token,
            ssl_context=inside_context,
        )
        try:
            outside = open_socket(
                outside_url, deadline=deadline, token=call.stream, ssl_context=outside_context
            )
        except BaseException:
            inside.close()
            raise
        return WebSocketLeg(outside, masked=False), WebSocketLeg(inside, masked=False)

    return go
