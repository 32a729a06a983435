"""The clients of one front that have a session: what their workers say, and the end of either."""

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
    """Knows them by their sessions' tokens. All methods run on the loop's thread.

    Parameters
    ----------
    hub
        Lets them in.
    stall_seconds
        Who takes none of what waits for it for so long is dropped.
    """

    def __init__(self, hub: Hub, stall_seconds: float) -> None:
        self._hub = hub
        self._stall_seconds = stall_seconds
        self._clients: dict[bytes, ClientChannel] = {}

    def greet(
        self, hello: wire.Header, control: Outbox, identity: str
    ) -> tuple[ClientChannel, wire.Header]:
        """Let a client in: itself and its welcome, to which the data address is still to be added.

        Raises
        ------
        TapmlError
            As :meth:`tapml_rpc.supervisor.hub.Hub.hello` does.
        """
        client = ClientChannel(control)
        client.relay, welcome = self._hub.hello(hello, client, identity)
        client.fileno = client.relay.fileno()
        self._clients[client.relay.token] = client
        asyncio.get_running_loop().add_reader(client.fileno, self._readable, client)
        return client, welcome

    def claim(self, header: wire.Header, data: Outbox, identity: str) -> ClientChannel:
        """Whose the data connection is that begins with this message.

        Raises
        ------
        DeviceLostError
            If there is no such session, or it is another client's.
        ProtocolError
            If it has its data connection already.
        """
        token = wire.octets(header.get("session"), "session", 64)
        client = self._clients.get(token)
        if client is None or client.relay.identity != identity:
            self._hub.relay(token)
            raise DeviceLostError("the session is another client's, or of another binding")
        if client.data is not None:
            raise ProtocolError("this session has its data connection already")
        client.data = data
        return client

    def drop(self, client: ClientChannel, why: str, code: int = CloseCode.NORMAL_CLOSURE) -> None:
        """End a client's session, where it has not ended, and its connections; the first counts."""
        if self._clients.pop(client.relay.token, None) is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(client.fileno)
        client.relay.give_up(why)
        for outbox in filter(None, (client.control, client.data)):
            client.closing.append(loop.create_task(outbox.close(code, why)))

    def check(self, now: float) -> None:
        """Look at the clock."""
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
