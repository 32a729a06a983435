"""One data connection: its first message names its session, which gets all messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from websockets.frames import CloseCode

from tapml_rpc import wire
from tapml_rpc.refusals import check_epoch
from tapml_rpc.websocket.clients import Clients
from tapml_rpc.websocket.front_messages import answer_error, show_ours, split_message
from tapml_rpc.websocket.inbox import Inbox
from tapml_rpc.websocket.outbox import Outbox
from tapml_rpc.websocket.strangers import HELLO_SECONDS, Strangers
from tapml_targets.errors import ProtocolError

if TYPE_CHECKING:
    from tapml_rpc.supervisor.hub import Hub


async def serve_data(
    hub: Hub, clients: Clients, strangers: Strangers, inbox: Inbox, outbox: Outbox, identity: str
) -> None:
    """Serve a data connection until it or its session ends.

    It is one of the `strangers` until its first message. `identity` is what the binding verified.
    Raises ``websockets.exceptions.ConnectionClosed`` if the connection has ended.
    """
    client = None
    sequence: object = None
    strangers.came(outbox, hub.bounds.sessions)
    try:
        while client is None or not client.relay.ended:
            message = await (
                asyncio.wait_for(inbox.next(), HELLO_SECONDS) if client is None else inbox.next()
            )
            if client is not None and client.relay.ended:
                break
            sequence = None
            try:
                packed, chunk = split_message(message)
                header = wire.unpack(packed)
                sequence = header.get("sequence")
                # Checked first: a restarted server knows no session of its last lifetime.
                check_epoch(header, hub.epoch)
                if client is None:
                    client = clients.claim(header, outbox, identity)
                    strangers.gone(outbox)
                elif wire.octets(header.get("session"), "session", 64) != client.relay.token:
                    raise ProtocolError("this connection belongs to another session")
                client.relay.accept(header, bytes(packed), chunk)
            except Exception as error:
                show_ours(error)
                answer_error(outbox, error, sequence)
                if client is None or isinstance(message, str):
                    text = isinstance(message, str)
                    code = CloseCode.UNSUPPORTED_DATA if text else CloseCode.POLICY_VIOLATION
                    await outbox.close(code, str(error))
                    return
    except TimeoutError:
        reason = f"no message within {HELLO_SECONDS:g} s"
        await outbox.close(CloseCode.POLICY_VIOLATION, reason)
    finally:
        strangers.gone(outbox)
        if client is not None:
            clients.drop(client, client.relay.ended or "its data connection is gone")
    if client is not None:
        await asyncio.wait(client.closing)
