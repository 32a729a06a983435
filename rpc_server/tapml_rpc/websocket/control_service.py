"""One control connection: the hello that begins a session, heartbeats, cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from tapml_rpc.scattered import Chunk
from tapml_rpc.websocket.client_channel import ClientChannel
from tapml_rpc.websocket.clients import Clients
from tapml_rpc.websocket.front_messages import control_header, message_of, refuse, show_ours
from tapml_rpc.websocket.inbox import Inbox
from tapml_rpc.websocket.outbox import Outbox
from tapml_rpc.websocket.strangers import HELLO_SECONDS
from tapml_targets.errors import ProtocolError

if TYPE_CHECKING:
    from tapml_rpc.supervisor.hub import Hub


async def serve_control(
    hub: Hub, clients: Clients, inbox: Inbox, outbox: Outbox, identity: str, data_address: str
) -> None:
    """Serve a control connection until it or its session ends.

    `identity` is what the binding verified. `data_address` goes into the welcome. Raises
    ``websockets.exceptions.ConnectionClosed`` if the connection has ended.
    """
    try:
        header = control_header(await asyncio.wait_for(inbox.next(), HELLO_SECONDS))
        if header.get("type") != "hello":
            raise ProtocolError("a control connection begins with a hello")
        client, welcome = clients.greet(header, outbox, identity)
    except TimeoutError:
        await outbox.close(CloseCode.POLICY_VIOLATION, f"no hello within {HELLO_SECONDS:g} s")
        return
    except ConnectionClosed:
        raise
    except Exception as error:
        show_ours(error)
        refuse(outbox, error)
        await outbox.close(CloseCode.POLICY_VIOLATION, str(error))
        return
    outbox.put(message_of({**welcome, "data_address": data_address}))
    hub.refill()
    relay = client.relay
    try:
        while not relay.ended:
            message = await inbox.next()
            if not relay.ended:
                _hear(hub, client, message)
    finally:
        clients.drop(client, relay.ended or "its control connection is gone")
    await asyncio.wait(client.closing)


def _hear(hub: Hub, client: ClientChannel, message: Chunk | str) -> None:
    try:
        header = control_header(message)
        if header.get("session") != client.relay.token:
            raise ProtocolError("no such session: it has ended, or is another connection's")
        reply = client.relay.control(header)
    except Exception as error:
        show_ours(error)
        refuse(client.control, error)
        return
    if reply is not None:
        hub.count(reply)
        client.control.put(message_of(reply))
