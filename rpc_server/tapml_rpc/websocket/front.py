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
from typing import TYPE_CHECKING, Final

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from tapml_rpc import wire
from tapml_rpc.websocket import frames
from tapml_rpc.websocket.admission import (
    LOOPBACK_ORIGINS,
    Admission,
    Guard,
    OneToken,
    check_secret,
)
from tapml_rpc.websocket.clients import Clients
from tapml_rpc.websocket.control_service import serve_control
from tapml_rpc.websocket.data_service import serve_data
from tapml_rpc.websocket.inbox import Inbox
from tapml_rpc.websocket.outbox import TLS_WRITE_LIMIT, WRITE_LIMIT, Outbox
from tapml_rpc.websocket.strangers import Strangers, bound_messages
from tapml_targets.errors import SetupError

if TYPE_CHECKING:
    from tapml_rpc.supervisor.hub import Hub

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
