"""The WebSocket binding as raw frames."""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from contextlib import suppress
from typing import Final

from scripts.wire_fuzz.messages import Socket
from tapml_rpc.websocket.frames import CONTROL_PATH
from tapml_rpc.websocket.handshake import data_address, open_socket

_CONNECT_SECONDS: Final = 20.0
_SEND_SECONDS: Final = 5.0
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10
# A mask of zeros is a mask, and leaves the bytes readable.
_MASK: Final = bytes(4)


class WebSocketWire:
    """Two connections; satisfies :class:`scripts.wire_fuzz.peer.Wire`."""

    def __init__(self, address: str) -> None:
        self.closed = False
        self._address = address
        self._sockets: dict[Socket, socket.socket] = {}
        self._received: dict[Socket, bytearray] = {}
        self._connect("control", address + CONTROL_PATH)

    def open_data(self, address: str) -> None:
        """Connect the data connection."""
        self._connect("data", data_address(address, self._address))

    def send(self, socket: Socket, frames: tuple[bytes, ...]) -> bool:
        """Send header and chunk as one message, further frames as separate messages."""
        header, *chunks = frames
        message = struct.pack("<I", len(header)) + header
        if chunks:
            message += bytes(-len(message) % 8) + chunks[0]
        return all(self._send_frame(socket, _BINARY, payload) for payload in (message, *chunks[1:]))

    def receive(self, seconds: float) -> list[tuple[Socket, bytes]]:
        """The headers of what came."""
        names = {self._sockets[name]: name for name in self._sockets}
        if self.closed:
            time.sleep(min(seconds, 0.01))
            return []
        ready, _, _ = select.select([*names], [], [], seconds)
        found: list[tuple[Socket, bytes]] = []
        for connection in ready:
            name = names[connection]
            try:
                data = connection.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                self.closed = True
                continue
            self._received[name] += data
            found += [(name, header) for header in self._take_headers(name)]
        return found

    def close(self) -> None:
        """Drop both connections."""
        self.closed = True
        for connection in self._sockets.values():
            connection.close()

    def _connect(self, name: Socket, url: str) -> None:
        connection = open_socket(
            url, deadline=time.monotonic() + _CONNECT_SECONDS, token=None, ssl_context=None
        )
        connection.settimeout(_SEND_SECONDS)
        self._sockets[name] = connection
        self._received[name] = bytearray()

    def _send_frame(self, name: Socket, opcode: int, payload: bytes) -> bool:
        try:
            self._sockets[name].sendall(frame(opcode, payload))
        except TimeoutError:
            return False
        except OSError:
            # The server has closed this connection.
            self.closed = True
        return True

    def _take_headers(self, name: Socket) -> list[bytes]:
        buffer, headers = self._received[name], []
        while len(buffer) >= 2:
            size, start = buffer[1] & 127, 2
            if size >= 126:
                form, start = (">H", 4) if size == 126 else (">Q", 10)
                if len(buffer) < start:
                    break
                (size,) = struct.unpack_from(form, buffer, 2)
            if len(buffer) < start + size:
                break
            opcode, payload = buffer[0] & 15, bytes(buffer[start : start + size])
            del buffer[: start + size]
            if opcode == _BINARY:
                (length,) = struct.unpack_from("<I", payload)
                headers.append(payload[4 : 4 + length])
            elif opcode == _PING:
                self._send_frame(name, _PONG, payload)
            elif opcode == _CLOSE:
                self.closed = True
        return headers


def frame(opcode: int, payload: bytes, *, first_bits: int = 0x80, masked: bool = True) -> bytes:
    """One frame of a client."""
    size, mask_bit = len(payload), 0x80 if masked else 0
    head = bytes([first_bits | opcode])
    if size < 126:
        head += bytes([mask_bit | size])
    elif size < 1 << 16:
        head += struct.pack(">BH", mask_bit | 126, size)
    else:
        head += struct.pack(">BQ", mask_bit | 127, size)
    return head + (_MASK if masked else b"") + payload


def throw_frames(rng: random.Random, address: str) -> None:
    """Send frames that RFC 6455 forbids, after a regular upgrade."""
    wrong = (
        rng.randbytes(rng.randint(1, 400)),
        frame(1, b"text"),
        frame(1, b"\xff\xfe"),
        frame(_BINARY, b"not masked", masked=False),
        frame(rng.choice([3, 7, 11, 15]), b""),
        frame(_BINARY, b"reserved bits", first_bits=0xF0),
        frame(0, b"continues nothing"),
        frame(_BINARY, b"a", first_bits=0) + frame(_BINARY, b"begins again"),
        frame(_BINARY, b"a", first_bits=0) * 3 + frame(_PING, b"in between"),
        frame(_PING, bytes(126)),
        frame(_PING, b"", first_bits=0),
        frame(_CLOSE, b"\x03"),
        frame(_CLOSE, struct.pack(">H", rng.choice([0, 999, 1005, 5000])) + b"\xff"),
        b"\x82\xff" + b"\xff" * 8 + _MASK,
        b"\x82\xfe\x00\x05" + _MASK + b"short",
        frame(_PING, b"flood") * 500,
        frame(_BINARY, b"", first_bits=0) + frame(0, b"", first_bits=0) * 2000,
    )
    with suppress(OSError):
        path = rng.choice(["/control", "/data"])
        connection = open_socket(
            address + path,
            deadline=time.monotonic() + _CONNECT_SECONDS,
            token=None,
            ssl_context=None,
        )
        connection.settimeout(_SEND_SECONDS)
        with connection:
            connection.sendall(rng.choice(wrong))
            if rng.random() < 0.5:
                connection.settimeout(0.05)
                connection.recv(65536)
