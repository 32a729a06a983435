"""The endpoint over HTTP: ``/v1/models``, ``/v1/completions``, ``/v1/chat/completions``.

Connections, headers, bodies and the line of requests are bounded, and whoever has asked nothing
yet gives way to who comes when all places are taken. On loopback it asks nobody who
they are, and a page of another site that a browser here has open can neither read from it (no
CORS) nor make it work (JSON alone is taken, which such a page has to ask for first) nor reach it
under a name of its own (the Host header is checked). Elsewhere every request needs the token.
"""

from __future__ import annotations

import hmac
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from tapml.report.listening import ListeningServer
from tapml.serving.answers import Answer, Choice
from tapml.serving.requests import MAX_BODY_BYTES, read_wish
from tapml.serving.turns import BusyError, LeftError, Turns
from tapml_targets.errors import (
    DeviceLostError,
    InputError,
    NoSuchDeviceError,
    SetupError,
    TapmlError,
)

MAX_CONNECTIONS: Final = 64
_REQUEST_SECONDS: Final = 30.0
_CHAT: Final = "/v1/chat/completions"
_COMPLETIONS: Final = "/v1/completions"
_MODELS: Final = "/v1/models"
# What load balancers ask for.
_HEALTH: Final = "/health"
# The one interim answer that every client passes over.
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class ModelServer(ListeningServer):
    """Answers requests with one model; a context manager.

    Parameters
    ----------
    turns
        The model.
    host, port
        Where to listen; port 0 for a free one.
    token
        What every request has to carry; may be None on loopback alone.

    Raises
    ------
    InputError
        If it cannot listen there, or there is no token and other machines would reach it.
    """

    def __init__(self, turns: Turns, *, host: str, port: int, token: str | None) -> None:
        self.turns = turns
        self._token = token
        self._connections = Connections(MAX_CONNECTIONS)
        super().__init__(_Handler, host, port)
        if token is None and not self.is_local:
            self.server_close()
            raise InputError(
                f"refusing to listen on {host}: without a token only loopback is safe; give "
                "--token-file FILE, or leave --host and reach it through a tunnel such as `ssh -L`"
            )

    def process_request(self, request: Any, client_address: Any) -> None:
        """Send away who comes while all places are taken by requests that are being answered."""
        if self._connections.admit(request):
            try:
                super().process_request(request, client_address)
            except BaseException:
                self._connections.leave(request)
                raise
            return
        with suppress(OSError):
            request.sendall(_FULL)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the place back at the end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.leave(request)

    def answering(self, request: Any) -> AbstractContextManager[None]:
        """Keep a connection's place while its request is answered."""
        return self._connections.answering(request)

    def admits(self, authorization: str | None) -> bool:
        """Whether a request's ``Authorization`` is the token, if there is one."""
        if self._token is None:
            return True
        expected = f"Bearer {self._token}".encode()
        return hmac.compare_digest((authorization or "").encode(), expected)


class Connections:
    """The places of a server, of which those without a request give way, the oldest first.

    Otherwise as many silent connections as there are places keep everyone else out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        # In the order in which they began to be silent.
        self._silent: dict[socket.socket, None] = {}
        self._answered: set[socket.socket] = set()

    def admit(self, connection: socket.socket) -> bool:
        """Give it a place, if need be that of a silent one; False if all are answered."""
        with self._lock:
            if len(self._silent) + len(self._answered) >= self._most:
                if not self._silent:
                    return False
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._silent[connection] = None
            return True

    def leave(self, connection: socket.socket) -> None:
        """Give its place back, if it still has one."""
        with self._lock:
            self._silent.pop(connection, None)
            self._answered.discard(connection)

    @contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Keep its place for the block.

        Raises
        ------
        LeftError
            If its place has been given to another.
        """
        with self._lock:
            if connection not in self._silent:
                raise LeftError("its place was given to another")
            del self._silent[connection]
            self._answered.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._answered.discard(connection)
                self._silent[connection] = None


class _Refusal(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "tapml"
    sys_version = ""
    timeout = _REQUEST_SECONDS
    server: ModelServer
    _asked = False
    """Whether a client that ended its side got the note that its answer is being made."""

    def do_GET(self) -> None:
        """List the model."""
        self._guarded(self._models)

    def do_POST(self) -> None:
        """Generate."""
        self._guarded(self._generate)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: prompts are nobody's business."""

    def _guarded(self, answer: Callable[[], None]) -> None:
        try:
            self._check_client()
            answer()
        except _Refusal as refusal:
            self._refuse(refusal.status, str(refusal))
        except BusyError as error:
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS, str(error))
        except (LeftError, ConnectionError, TimeoutError):
            self.close_connection = True
        except InputError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except TapmlError as error:
            self._refuse(*_trouble(error))

    def _check_client(self) -> None:
        lengths = self.headers.get_all("Content-Length") or []
        if "Transfer-Encoding" in self.headers or len(lengths) > 1:
            # A proxy in front may take the other for the body's end.
            raise _Refusal(
                HTTPStatus.LENGTH_REQUIRED, "expected one Content-Length and no Transfer-Encoding"
            )
        if self.command == "GET" and lengths:
            self.close_connection = True  # A body that nobody reads is no next request.
        if not self.server.admits(self.headers.get("Authorization")):
            raise _Refusal(HTTPStatus.UNAUTHORIZED, "expected Authorization: Bearer and the token")
        hosts = self.headers.get_all("Host") or []
        if self.server.is_local and (len(hosts) != 1 or not self.server.knows(hosts[0])):
            raise _Refusal(
                HTTPStatus.MISDIRECTED_REQUEST, f"this server is {self.server.url}, not another"
            )

    def _models(self) -> None:
        name = self.server.turns.name
        model = {"id": name, "object": "model", "created": 0, "owned_by": "tapml"}
        path = self.path.partition("?")[0]
        if path == _MODELS:
            self._send_json(HTTPStatus.OK, {"object": "list", "data": [model]})
        elif path == _HEALTH:
            self._send_json(HTTPStatus.OK, {"status": "ok"})
        elif path == f"{_MODELS}/{name}":
            self._send_json(HTTPStatus.OK, model)
        else:
            raise _Refusal(
                HTTPStatus.NOT_FOUND, f"expected GET {_MODELS}, POST {_COMPLETIONS} or POST {_CHAT}"
            )

    def _generate(self) -> None:
        path = self.path.partition("?")[0]
        if path not in (_COMPLETIONS, _CHAT):
            raise _Refusal(HTTPStatus.NOT_FOUND, f"expected POST {_COMPLETIONS} or POST {_CHAT}")
        wish = read_wish(self._body(), chat=path == _CHAT)
        if wish.model not in (None, self.server.turns.name):
            raise _Refusal(
                HTTPStatus.NOT_FOUND,
                f"the model {str(wish.model)[:80]!r} is not here: expected "
                f"{self.server.turns.name!r}",
            )
        self._asked = False
        with (
            self.server.answering(self.connection),
            self.server.turns.turn(self._gone) as model,
        ):
            answer = Answer(model, wish)
            if wish.stream:
                self._stream(answer)
            else:
                texts = ["".join(self._watched(choice)) for choice in answer.choices]
                self._send_json(HTTPStatus.OK, answer.whole(texts))

    def _stream(self, answer: Answer) -> None:
        """Server-sent events; what goes wrong before the first token still has a status."""
        head, *others = answer.choices
        pieces = self._watched(head)
        first = next(pieces, "")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self._asked = True  # The events tell it from here on.
        try:
            self._choice(answer, head, first, pieces)
            for choice in others:
                self._choice(answer, choice, "", self._watched(choice))
        except TapmlError as error:
            if isinstance(error, LeftError):
                raise
            status, message = _trouble(error)
            self._events(iter([_error(status, message)]))
            if isinstance(error, DeviceLostError):
                # The line has to know. The status has been sent: nothing more is.
                self.close_connection = True
                raise LostInStreamError(str(error)) from error
            return
        self._events(answer.last_chunks())
        self.wfile.write(b"data: [DONE]\n\n")

    def _choice(self, answer: Answer, choice: Choice, text: str, pieces: Iterator[str]) -> None:
        """The events of one text, of which `text` is there and `pieces` follow."""
        self._events(answer.chunks(choice, text, first=True))
        for piece in pieces:
            self._events(answer.chunks(choice, piece, first=False))
        self._events(iter([answer.end(choice)]))

    def _events(self, events: Iterator[dict[str, Any]]) -> None:
        for event in events:
            self.wfile.write(b"data: " + _json(event) + b"\n\n")
        self.wfile.flush()

    def _watched(self, choice: Choice) -> Iterator[str]:
        """The pieces, until the client has gone or the server ends."""
        for piece in choice:
            yield piece
            if self.server.turns.ended or self._gone():
                raise LeftError("nobody waits for it")

    def _gone(self) -> bool:
        """Whether the client has gone.

        One that has ended its own side may still read. It gets one note that the answer is being
        made: if nobody is there, that is answered by a reset, which the next look sees.
        """
        try:
            poll = select.poll()
            poll.register(self.connection, select.POLLIN)
            happened = dict(poll.poll(0)).get(self.connection.fileno(), 0)
            if happened & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                return True
            if happened and not self._asked and not self.connection.recv(1, socket.MSG_PEEK):
                self._asked = True
                if self.request_version == self.protocol_version:
                    self.connection.sendall(_CONTINUE)
            return False
        except (OSError, ValueError):
            return True

    def _body(self) -> bytes:
        kind = (self.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise _Refusal(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected Content-Type: application/json"
            )
        length = self.headers.get("Content-Length") or ""
        if not (length.isascii() and length.isdigit() and len(length) < 12):
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "expected Content-Length: bytes of the body")
        if int(length) > MAX_BODY_BYTES:
            raise _Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"expected a body of at most {MAX_BODY_BYTES} bytes, got {length}",
            )
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise LeftError("the client has gone")
        return content

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        # What is left of the body is not read.
        self.close_connection = True
        with suppress(OSError):
            self._send_json(status, _error(status, message), retry=status == 429)

    def _send_json(self, status: HTTPStatus, data: dict[str, Any], *, retry: bool = False) -> None:
        body = _json(data)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if retry:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class LostInStreamError(DeviceLostError, ConnectionError):
    """The device was lost behind the status: the stream has the error."""


def _trouble(error: TapmlError) -> tuple[HTTPStatus, str]:
    """Status and one line for what is not the request's fault."""
    line = str(error).partition("\n")[0]
    if isinstance(error, DeviceLostError):
        return (
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the device was lost ({line}): the model is opened again at the next request",
        )
    away = isinstance(error, SetupError | NoSuchDeviceError)
    return (HTTPStatus.SERVICE_UNAVAILABLE if away else HTTPStatus.INTERNAL_SERVER_ERROR), line


def _error(status: HTTPStatus, message: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode()
