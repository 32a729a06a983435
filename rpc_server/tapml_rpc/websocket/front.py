"""The server's end of the WebSocket binding: listens, lets clients in, hands messages to relays.

One thread with an event loop of its own. Nothing here waits for a device: what a client says goes
to its session's relay, and what the session's worker says is read when its socket has something.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import re
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from tapml_rpc import wire
from tapml_rpc.scattered import Chunk
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.admission import (
    LOOPBACK_ORIGINS,
    Admission,
    Guard,
    OneToken,
    check_secret,
)
from tapml_rpc.websocket.client_channel import ClientChannel
from tapml_rpc.websocket.front_messages import (
    answer_error,
    control_header,
    message_of,
    refuse,
    show_ours,
    split_message,
)
from tapml_rpc.websocket.inbox import Inbox
from tapml_rpc.websocket.outbox import TLS_WRITE_LIMIT, WRITE_LIMIT, Outbox
from tapml_rpc.websocket.strangers import Strangers, bound_messages
from tapml_targets.errors import DeviceLostError, ProtocolError, SetupError

if TYPE_CHECKING:
    from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.supervisor.refusals import check_epoch

MOST_CONNECTIONS: Final = 256
# What a session's ring holds, and its small messages.
MOST_UNSENT_BYTES: Final = 40 << 20
STALL_SECONDS: Final = 60.0
HELLO_SECONDS: Final = 10.0
# A header and its length; no message on control has a chunk.
_MOST_CONTROL_BYTES: Final = wire.MAX_STRANGER_BYTES + 4
_OPEN_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 0.05
_END_SECONDS: Final = 5.0
_NORMAL: Final = 1000
_GOING_AWAY: Final = 1001
_NO_TEXT: Final = 1003
_REFUSED: Final = 1008

_LOGGER: Final = logging.getLogger("tapml_rpc.websocket")
# What hostile or broken clients do is answered to them; it is no news for the server's terminal.
_LOGGER.setLevel(logging.CRITICAL)


class WebSocketFront:
    """Listens for clients until closed; see :func:`serve_websocket`.

    Attributes
    ----------
    address
        ``ws://host:port`` or ``wss://host:port``.
    """

    def __init__(
        self,
        hub: Hub,
        host: str,
        port: int,
        *,
        admission: Admission,
        ssl_context: ssl.SSLContext | None,
        stall_seconds: float,
    ) -> None:
        self.address = ""
        self._hub = hub
        self._host, self._port = host, port
        self._admission = admission
        self._ssl_context = ssl_context
        self._stall_seconds = stall_seconds
        self._connections = 0
        self._strangers = Strangers()
        self._clients: dict[bytes, ClientChannel] = {}
        self._identities: WeakKeyDictionary[ServerConnection, str] = WeakKeyDictionary()
        started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(started.put,), name="tapml-websocket", daemon=True
        )
        self._thread.start()
        error = started.get()
        if error is not None:
            raise SetupError(f"cannot listen on {host} port {port}: {error}") from error

    def close(self) -> None:
        """End all sessions of this binding and stop listening. Closing twice does nothing."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=_END_SECONDS)

    def _run(self, started: Callable[[Exception | None], None]) -> None:
        asyncio.run(self._serve(started))

    async def _serve(self, started: Callable[[Exception | None], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            server = await serve(
                self._handle,
                self._host,
                self._port,
                ssl=self._ssl_context,
                process_request=self._admit,
                subprotocols=[Subprotocol(frames.SUBPROTOCOL)],
                compression=None,
                max_size=frames.MAX_MESSAGE_BYTES,
                write_limit=TLS_WRITE_LIMIT if self._ssl_context else WRITE_LIMIT,
                open_timeout=_OPEN_SECONDS,
                close_timeout=_CLOSE_SECONDS,
                # The protocol has heartbeats of its own.
                ping_interval=None,
                server_header=None,
                logger=_LOGGER,
            )
        except (OSError, OverflowError) as error:
            started(error)
            return
        scheme = "wss" if self._ssl_context else "ws"
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"{scheme}://{shown}:{server.sockets[0].getsockname()[1]}"
        started(None)
        try:
            while not self._stop.is_set():
                self._check(time.monotonic())
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _CHECK_SECONDS)
        finally:
            for client in list(self._clients.values()):
                self._drop(client, "the server ends", _GOING_AWAY)
            server.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), _END_SECONDS / 2)

    def _check(self, now: float) -> None:
        for client in list(self._clients.values()):
            client.relay.guarded(partial(client.relay.check, now))
            stalled = client.stalled_seconds(now)
            if client.relay.ended:
                self._drop(client, client.relay.ended)
            elif stalled > self._stall_seconds:
                self._drop(client, f"it has taken none of its data for {stalled:.0f} s")

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if self._connections >= MOST_CONNECTIONS:
            return connection.respond(
                503, f"all {MOST_CONNECTIONS} connections of this server are taken\n"
            )
        address = str((connection.remote_address or [""])[0])
        if self._admission.guarded:
            # A list of tokens is a file.
            admitted = await asyncio.to_thread(self._admission.check, request, address)
        else:
            admitted = self._admission.check(request, address)
        if isinstance(admitted, str):
            self._identities[connection] = admitted
            if request.path == frames.CONTROL_PATH:
                bound_messages(connection, _MOST_CONTROL_BYTES)
            return None
        response = connection.respond(admitted.status, admitted.reason + "\n")
        if admitted.retry_after:
            response.headers["Retry-After"] = str(math.ceil(admitted.retry_after))
        return response

    async def _handle(self, connection: ServerConnection) -> None:
        self._connections += 1
        inbox, outbox = Inbox(connection), Outbox(connection, MOST_UNSENT_BYTES)
        try:
            assert connection.request is not None  # noqa: S101 - it was answered
            if connection.request.path == frames.CONTROL_PATH:
                await self._serve_control(inbox, outbox, self._identities[connection])
            else:
                await self._serve_data(inbox, outbox, self._identities[connection])
        except ConnectionClosed:
            pass
        except Exception:
            # A fault of ours must cost the one client, and must be seen.
            traceback.print_exc()
        finally:
            self._connections -= 1
            self._strangers.gone(outbox)
            outbox.abort()

    async def _serve_control(self, inbox: Inbox, outbox: Outbox, identity: str) -> None:
        try:
            header = control_header(await asyncio.wait_for(inbox.next(), HELLO_SECONDS))
            if header.get("type") != "hello":
                raise ProtocolError("a control connection begins with a hello")
            client = ClientChannel(outbox)
            client.relay, welcome = self._hub.hello(header, client, identity)
        except TimeoutError:
            await outbox.close(_REFUSED, f"no hello within {HELLO_SECONDS:g} s")
            return
        except ConnectionClosed:
            raise
        except Exception as error:
            show_ours(error)
            refuse(outbox, error)
            await outbox.close(_REFUSED, str(error))
            return
        relay = client.relay
        client.fileno = relay.fileno()
        self._clients[relay.token] = client
        self._loop.add_reader(client.fileno, self._readable, client)
        outbox.put(message_of({**welcome, "data_address": self.address + frames.DATA_PATH}))
        self._hub.refill()
        try:
            while not relay.ended:
                message = await inbox.next()
                if not relay.ended:
                    self._control(client, message)
        finally:
            self._drop(client, relay.ended or "its control connection is gone")
        await asyncio.wait(client.closing)

    def _control(self, client: ClientChannel, message: Chunk | str) -> None:
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
            self._hub.count(reply)
            client.control.put(message_of(reply))

    async def _serve_data(self, inbox: Inbox, outbox: Outbox, identity: str) -> None:
        client = None
        sequence: object = None
        self._strangers.came(outbox, self._hub.bounds.sessions)
        try:
            while client is None or not client.relay.ended:
                message = await (
                    asyncio.wait_for(inbox.next(), HELLO_SECONDS)
                    if client is None
                    else inbox.next()
                )
                if client is not None and client.relay.ended:
                    break
                sequence = None
                try:
                    packed, chunk = split_message(message)
                    header = wire.unpack(packed)
                    sequence = header.get("sequence")
                    # Said first: a restarted server knows no session of its last life.
                    check_epoch(header, self._hub.epoch)
                    client = self._client(header, client, outbox, identity)
                    self._strangers.gone(outbox)
                    client.relay.accept(header, bytes(packed), chunk)
                except Exception as error:
                    show_ours(error)
                    answer_error(outbox, error, sequence)
                    if client is None or isinstance(message, str):
                        code = _NO_TEXT if isinstance(message, str) else _REFUSED
                        await outbox.close(code, str(error))
                        return
        except TimeoutError:
            await outbox.close(_REFUSED, f"no message within {HELLO_SECONDS:g} s")
        finally:
            if client is not None:
                self._drop(client, client.relay.ended or "its data connection is gone")
        if client is not None:
            await asyncio.wait(client.closing)

    def _client(
        self, header: wire.Header, client: ClientChannel | None, outbox: Outbox, identity: str
    ) -> ClientChannel:
        """Whose message it is; the first one of a data connection says so."""
        token = wire.octets(header.get("session"), "session", 64)
        if client is not None:
            if token != client.relay.token:
                raise ProtocolError("this connection belongs to another session")
            return client
        found = self._clients.get(token)
        if found is None or found.relay.identity != identity:
            self._hub.relay(token)
            raise DeviceLostError("the session is another client's, or of another binding")
        if found.data is not None:
            raise ProtocolError("this session has its data connection already")
        found.data = outbox
        return found

    def _readable(self, client: ClientChannel) -> None:
        client.relay.guarded(client.relay.readable)
        if client.relay.ended:
            self._drop(client, client.relay.ended)

    def _drop(self, client: ClientChannel, why: str, code: int = _NORMAL) -> None:
        if self._clients.pop(client.relay.token, None) is None:
            return
        self._loop.remove_reader(client.fileno)
        if not client.relay.ended:
            client.relay.end(why)
        for outbox in filter(None, (client.control, client.data)):
            client.closing.append(self._loop.create_task(outbox.close(code, why)))


def serve_websocket(
    hub: Hub,
    host: str,
    port: int,
    *,
    token: str | None = None,
    tokens: Guard | None = None,
    ssl_context: ssl.SSLContext | None = None,
    origins: Sequence[str | re.Pattern[str]] = LOOPBACK_ORIGINS,
    stall_seconds: float = STALL_SECONDS,
) -> WebSocketFront:
    """Serve a hub's sessions over WebSocket until the front is closed.

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes a free one.
    token
        The secret that clients must send; off loopback this or `tokens` is needed.
    tokens
        Who knows the tokens, where there are several or they change, e.g. a
        :class:`tapml_rpc.security.token.TokenBook`.
    ssl_context
        For ``wss``, with the server's certificate.
    origins
        Pages that may connect, by their Origin: texts or whole patterns. Replaces the pages of
        this machine, the default.
    stall_seconds
        A session whose client takes none of what waits for it for so long is ended.

    Raises
    ------
    SetupError
        If the address cannot be used, or needs a token.
    """
    guard = tokens if tokens is not None or not token else OneToken(token)
    check_secret(host, guarded=guard is not None)
    return WebSocketFront(
        hub,
        host,
        port,
        admission=Admission(guard, origins),
        ssl_context=ssl_context,
        stall_seconds=stall_seconds,
    )
