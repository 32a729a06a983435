"""The clients of one front that have a session: their workers' messages, and the end of either."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from websockets.frames import CloseCode

from tapml_rpc import wire
from tapml_rpc.websocket.client_channel import ClientChannel
from tapml_rpc.websocket.outbox import Outbox
from tapml_targets.errors import DeviceLostError, ProtocolError

if TYPE_CHECKING:
    from tapml_rpc.supervisor.hub import Hub


class Clients:
    """The clients by their sessions' tokens. All methods run on the loop's thread.

    A client that takes no bytes for `stall_seconds` is dropped.
    """

    def __init__(self, hub: Hub, stall_seconds: float) -> None:
        self._hub = hub
        self._stall_seconds = stall_seconds
        self._clients: dict[bytes, ClientChannel] = {}

    def greet(
        self, hello: wire.Header, control: Outbox, identity: str
    ) -> tuple[ClientChannel, wire.Header]:
        """Admit a client: itself and its welcome, without the data address.

        Raises what :meth:`tapml_rpc.supervisor.hub.Hub.hello` raises.
        """
        client = ClientChannel(control)
        client.relay, welcome = self._hub.hello(hello, client, identity)
        client.fileno = client.relay.fileno()
        self._clients[client.relay.token] = client
        asyncio.get_running_loop().add_reader(client.fileno, self._readable, client)
        return client, welcome

    def claim(self, header: wire.Header, data: Outbox, identity: str) -> ClientChannel:
        """The client of the data connection that begins with this message.

        Raises DeviceLostError if there is no such session or it is another client's, ProtocolError
        if it has its data connection already.
        """
        token = wire.octets(header.get("session"), "session", 64)
        client = self._clients.get(token)
        if client is None or client.relay.identity != identity:
            self._hub.relay(token)
            raise DeviceLostError("the session is another client's, or of another binding")
        if client.data is not None:
            raise ProtocolError("this session's data comes over another connection")
        client.data = data
        return client

    def drop(self, client: ClientChannel, why: str, code: int = CloseCode.NORMAL_CLOSURE) -> None:
        """End a client's session and its connections; later calls do nothing."""
        if self._clients.pop(client.relay.token, None) is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(client.fileno)
        client.relay.give_up(why)
        for outbox in filter(None, (client.control, client.data)):
            client.closing.append(loop.create_task(outbox.close(code, why)))

    def check(self, now: float) -> None:
        """Check timeouts."""
        for client in list(self._clients.values()):
            client.relay.guarded(partial(client.relay.check, now))
            stalled = client.stalled_seconds(now)
            if client.relay.ended:
                self.drop(client, client.relay.ended)
            elif stalled > self._stall_seconds:
                self.drop(client, f"it has taken none of its data for {stalled:.0f} s")

    def close(self) -> None:
        """Drop all of them, as the server ends."""
        for client in list(self._clients.values()):
            self.drop(client, "the server ends", CloseCode.GOING_AWAY)

    def _readable(self, client: ClientChannel) -> None:
        client.relay.guarded(client.relay.readable)
        if client.relay.ended:
            self.drop(client, client.relay.ended)
