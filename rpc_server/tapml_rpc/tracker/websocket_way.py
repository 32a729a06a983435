"""How a device relayed over WebSocket connects: one endpoint to the tracker, one to its own server.

The tracker and the device's own server are both servers: frames from either have no mask and go to
the other with one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tapml_rpc.tracker.flow import Endpoint
from tapml_rpc.tracker.outbound import DIAL_SECONDS, Call, Way
from tapml_rpc.tracker.records import LEG_PATH, reachable
from tapml_rpc.tracker.websocket_endpoint import WebSocketEndpoint
from tapml_rpc.websocket.handshake import check_address, open_socket

if TYPE_CHECKING:
    from tapml_rpc.security.credentials import Credentials


def websocket_way(
    tracker: str, credentials: Credentials | None, server: str, certificate: str
) -> Way:
    """The way between a tracker's WebSocket door and the device's own server.

    `credentials` say whom to trust at `tracker`; the relay's own secrets replace its token.
    `server`, the address of the device's own server, takes a lease's token if it asks for one;
    `certificate` is the fingerprint of its certificate, empty for none. Raises InputError if an
    address is malformed.
    """
    from tapml_rpc.security.tls import client_context

    outside_url = check_address(tracker) + LEG_PATH
    inside_url = reachable(check_address(server), "127.0.0.1")
    # Made once: reading the system's authorities takes a while.
    outside_context = (
        credentials.ssl_context() if credentials and tracker.startswith("wss://") else None
    )
    inside_context = client_context(fingerprint=certificate) if certificate else None

    def go(call: Call) -> tuple[Endpoint, Endpoint]:
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
        return WebSocketEndpoint(outside, masked=False), WebSocketEndpoint(inside, masked=False)

    return go
