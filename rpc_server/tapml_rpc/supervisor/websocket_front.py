"""The server's end of the WebSocket binding: listens, and serves admitted clients.

It has one thread with its own event loop. Nothing here waits for a device: messages go to a
session's relay, and the worker's are read when its socket is readable.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
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

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from tapml_rpc import wire
from tapml_rpc.failures import check_epoch, failure_to_wire
from tapml_rpc.scattered import Chunk, Scattered
from tapml_rpc.supervisor.websocket_outbox import (
    TLS_WRITE_LIMIT,
    WRITE_LIMIT,
    ClientChannel,
    Inbox,
    Outbox,
)
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.admission import (
    LOOPBACK_ORIGINS,
    Admission,
    Guard,
    OneToken,
    check_secret,
)
from tapml_targets.errors import DeviceLostError, ProtocolError, SetupError, TapmlError

if TYPE_CHECKING:
    from tapml_rpc.supervisor.hub import Hub


def split_message(message: Chunk | str) -> tuple[memoryview, Chunk]:
    """Header and chunk; raises ProtocolError for text and for malformed messages."""
    if isinstance(message, str):
        raise ProtocolError("a text message came; messages are binary")
    if isinstance(message, Scattered):
        return frames.split_scattered(message)
    return frames.split(message)


def control_header(message: Chunk | str) -> wire.Header:
    """The header of a control message; raises as :func:`split_message` does."""
    packed, chunk = split_message(message)
    if chunk:
        raise ProtocolError("a control message has no chunk")
    return wire.unpack(packed)


def message_of(header: wire.Header) -> bytes:
    """A complete message without a chunk."""
    return frames.head(wire.pack(header), 0)


def refuse(outbox: Outbox, error: Exception) -> None:
    """Answer a control message that is refused."""
    outbox.put(message_of({"type": "refused", "error": failure_to_wire(error)}))


def answer_error(outbox: Outbox, error: Exception, sequence: object) -> None:
    """Answer a data message that is refused; `sequence` if one could be read."""
    reply: wire.Header = {"type": "error", "error": failure_to_wire(error)}
    if type(sequence) is int and 0 <= sequence <= wire.MAX_INTEGER:
        reply["sequence"] = sequence
    outbox.put(message_of(reply))


def show_ours(error: Exception) -> None:
    """Print an internal fault; peers' faults are reported to them alone."""
    if not isinstance(error, TapmlError):
        # An internal fault must cost only one message, and must be seen.
        traceback.print_exc()


HELLO_SECONDS: Final = 10.0


def bound_messages(connection: ServerConnection, nbytes: int) -> None:
    """Accept no message over `nbytes` on a connection that has not been answered yet."""
    protocol = connection.protocol
    # Until release 16 of the package.
    former = hasattr(protocol, "max_size")
    setattr(protocol, "max_size" if former else "max_message_size", nbytes)


class Strangers:
    """Data connections of one server without a session, oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[Outbox, None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def came(self, outbox: Outbox, most: int) -> None:
        """Another one is open; the oldest is closed if there are too many.

        `most` is the number of possible sessions: a client with a session says so at once, so of
        more than these connections the oldest belongs to no session.
        """
        self._waiting[outbox] = None
        if len(self._waiting) <= most:
            return
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        why = f"it has not named its session, and {most} other connections are waiting"
        closing = asyncio.get_running_loop().create_task(
            oldest.close(CloseCode.POLICY_VIOLATION, why)
        )
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def gone(self, outbox: Outbox) -> None:
        """One has named its session, or has ended."""
        self._waiting.pop(outbox, None)


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


MOST_CONNECTIONS: Final = 256
# What a session's ring holds, and its small messages.
MOST_UNSENT_BYTES: Final = 40 << 20
STALL_SECONDS: Final = 60.0
# A header and its length; no message on control has a chunk.
_MOST_CONTROL_BYTES: Final = wire.MAX_STRANGER_BYTES + 4
_OPEN_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 0.05
_END_SECONDS: Final = 5.0

_LOGGER: Final = logging.getLogger("tapml_rpc.websocket")
# Faults of hostile or broken clients are answered, and not printed in the server's terminal.
_LOGGER.setLevel(logging.CRITICAL)


class WebSocketFront:
    """Listens for clients until closed; see :func:`serve_websocket`.

    `address` is ``ws://host:port`` or ``wss://host:port``.
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
        self._strangers = Strangers()
        self._clients = Clients(hub, stall_seconds)
        # The identity of each connection whose request is being handled; empty until it is
        # admitted.
        self._identities: dict[ServerConnection, str] = {}
        started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(started.put,), name="tapml-websocket", daemon=True
        )
        self._thread.start()
        error = started.get()
        if error is not None:
            # asyncio's own text repeats the address.
            known = isinstance(error, OSError) and error.errno
            why = os.strerror(known) if known else error
            raise SetupError(
                f"cannot listen on {host} port {port}: {why}; if another server is there end it, "
                "or give another port to --websocket (0 takes a free one)"
            ) from error

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
                # The protocol has its own heartbeats.
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
                self._clients.check(time.monotonic())
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _CHECK_SECONDS)
        finally:
            self._clients.close()
            server.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(server.wait_closed(), _END_SECONDS / 2)

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if len(self._identities) >= MOST_CONNECTIONS:
            return connection.respond(
                503, f"all {MOST_CONNECTIONS} connections of this server are taken\n"
            )
        # Counted now: others come while a list is read and during the handshake.
        self._identities[connection] = ""
        connection.connection_lost_waiter.add_done_callback(
            lambda _: self._identities.pop(connection, None)
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
        self._identities.pop(connection, None)
        response = connection.respond(admitted.status, admitted.reason + "\n")
        if admitted.retry_after:
            response.headers["Retry-After"] = str(math.ceil(admitted.retry_after))
        return response

    async def _handle(self, connection: ServerConnection) -> None:
        identity = self._identities.get(connection)
        if identity is None:
            return  # the connection is lost
        inbox, outbox = Inbox(connection), Outbox(connection, MOST_UNSENT_BYTES)
        try:
            assert connection.request is not None  # noqa: S101 - it was answered
            if connection.request.path == frames.CONTROL_PATH:
                address = self.address + frames.DATA_PATH
                await serve_control(self._hub, self._clients, inbox, outbox, identity, address)
            else:
                strangers = self._strangers
                await serve_data(self._hub, self._clients, strangers, inbox, outbox, identity)
        except ConnectionClosed:
            pass
        except Exception:
            # An internal fault must cost only this client, and must be seen.
            traceback.print_exc()
        finally:
            outbox.abort()


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
    """Serve a hub's sessions over WebSocket until the front is closed; port 0 takes a free one.

    Off loopback `token`, a secret, or `tokens`, such as a
    :class:`tapml_rpc.security.token.TokenBook`, is needed. `ssl_context` with the server's
    certificate is for ``wss``. `origins` of pages that may connect, texts or patterns that match
    completely, replace the default, the pages of this machine. A session whose client takes no
    bytes for `stall_seconds` is ended. Raises SetupError if the address cannot be used, or needs a
    token.
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
