"""ZeroMQ's CURVE: every byte encrypted, server and client each known by their keys.

A server needs an :class:`Authenticator` on its context before anything connects. Without one nobody
is admitted: libzmq would otherwise admit every key.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final, TypeAlias

import zmq

from tapml_rpc.security.allow_list import AllowList
from tapml_rpc.security.keys import KeyPair, encode_key, is_key, read_pair
from tapml_rpc.security.standing import LOOPBACK_IDENTITY
from tapml_rpc.standard_error import say
from tapml_rpc.waking import Waker
from tapml_targets.errors import InputError, TapmlError

ZAP_DOMAIN: Final = b"tapml"
_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_ZAP_VERSION: Final = b"1.0"
_ZAP_FRAMES: Final = 7
_KEY_BYTES: Final = 32
_SAID_SECONDS: Final = 60.0
_SAID_CLIENTS: Final = 256

Socket: TypeAlias = zmq.Socket[bytes]
Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class ServerCurve:
    """A server's own keys, and the clients it admits."""

    keys: KeyPair
    clients: AllowList

    @classmethod
    def from_files(cls, keys: Path, clients: Path | None = None) -> ServerCurve:
        """A server's secret file and its list of clients; raises InputError or SetupError."""
        curve = cls(read_pair(keys), AllowList(clients))
        # A damaged list is reported at the start.
        curve.clients.clients()
        return curve


@dataclass(frozen=True)
class ClientCurve:
    """A client's own keys, and the public key of its one server."""

    keys: KeyPair
    server: str

    def __post_init__(self) -> None:
        if not is_key(self.server):
            raise InputError(f"expected the server's public key, got {self.server[:80]!r}")
        if self.server == self.keys.public:
            raise InputError(
                "the server's public key given is this client's own; the device's is what "
                "`tapml rpc keygen` printed there"
            )


def apply_server(socket: Socket, curve: ServerCurve | None) -> None:
    """Make a socket that will be bound admit only the listed clients; None leaves it plain."""
    if curve is None:
        return
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, curve.keys.secret.encode())
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    # Without this libzmq admits everybody if nobody answers its question.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def apply_client(socket: Socket, curve: ClientCurve | None) -> None:
    """Make a socket that will connect encrypt and authenticate; None leaves it plain."""
    if curve is None:
        return
    socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.keys.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, curve.keys.secret.encode())
    socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server.encode())


def client_identity(frame: zmq.Frame, curve: ServerCurve | None) -> str:
    """The sender of a message: its client's public key, or ``loopback`` on a plain socket.

    `frame` is any frame of the message, received by a ROUTER with ``copy=False``. On a plain socket
    the peer itself fills the field, so it is not read. Raises InputError if a CURVE message has no
    key, which is an internal fault.
    """
    if curve is None:
        return LOOPBACK_IDENTITY
    try:
        key = frame.get("User-Id")
    except zmq.ZMQError:
        key = None
    if not isinstance(key, str) or not is_key(key):
        raise InputError("a message on a CURVE socket has no client key")
    return key


class Authenticator:
    """Answers libzmq's question whether a client's key is admitted, on its own thread.

    One per context, made before its sockets are bound and closed after them. `say` takes one line
    about each refused client, at most once a minute for each key; standard error by default.
    """

    def __init__(self, context: zmq.Context[Socket], clients: AllowList, *, say: Say = say) -> None:
        self._clients = clients
        self._say = say
        self._said: OrderedDict[str, float] = OrderedDict()
        self._closed = False
        self._socket: Socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP_ENDPOINT)
        self._waker = Waker()
        self._thread = threading.Thread(target=self._run, name="tapml-admission", daemon=True)
        self._thread.start()

    def __enter__(self) -> Authenticator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop; from now on nobody is admitted."""
        if self._closed:
            return
        self._closed = True
        self._waker.wake()
        self._thread.join()
        self._waker.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if self._waker.fileno() in ready:
                    return
                frames = self._socket.recv_multipart()
                self._socket.send_multipart(self._answer(frames))
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close()

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        request = frames[1] if len(frames) > 1 else b""
        status, text, user = b"400", b"not a CURVE client", b""
        if (
            len(frames) == _ZAP_FRAMES
            and frames[0] == _ZAP_VERSION
            and frames[2] == ZAP_DOMAIN
            and frames[5] == b"CURVE"
            and len(frames[6]) == _KEY_BYTES
        ):
            key = encode_key(frames[6])
            status, text = self._judge(key, frames[3].decode("ascii", "replace"))
            user = key.encode() if status == b"200" else b""
        return [_ZAP_VERSION, request, status, text, user, b""]

    def _judge(self, key: str, address: str) -> tuple[bytes, bytes]:
        path = self._clients.path
        try:
            client = self._clients.find(key)
        except TapmlError as error:
            self._tell(str(path), f"refused every client: {error}")
            return b"500", b"the list of clients cannot be read"
        except Exception as error:
            # No fault may end the thread: libzmq would wait for an answer.
            self._tell(str(path), f"refused every client: {error!r}")
            return b"500", b"the list of clients cannot be read"
        if client is not None:
            return b"200", b"OK"
        self._tell(
            key,
            f"refused a client at {address}: its key is not in {path}. To admit it: "
            f"tapml rpc keygen --authorize={quote(key)} --name NAME",
        )
        return b"400", b"this key is not admitted"

    def _tell(self, about: str, line: str) -> None:
        now = time.monotonic()
        said = self._said.get(about)
        if said is not None and now - said < _SAID_SECONDS:
            return
        self._said[about] = now
        self._said.move_to_end(about)
        if len(self._said) > _SAID_CLIENTS:
            self._said.popitem(last=False)
        self._say(line)
