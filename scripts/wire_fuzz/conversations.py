"""Valid conversations of a client that follows PROTOCOL.md, in every allowed order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from scripts.wire_fuzz.kernel import packed_library
from scripts.wire_fuzz.messages import EPOCH, TOKEN, Message, sequence

HELLO: Final[dict[str, object]] = {
    "type": "hello",
    "versions": [3],
    "features": [],
    "download_window": 16 << 20,
    "kernel_deadline": 30.0,
}
_LIBRARY: Final = 900
_STREAMED_BYTES: Final = (2 << 20) + 8
# A payload that takes a different path than shorter ones.
_LONG_BYTES: Final = 40_000

Command = list[Any]


class Conversation:
    """Builds one valid conversation from a generator of random numbers.

    Parameters
    ----------
    blobs
        Whether to include messages about blobs.
    sequence
        The number before its first batch's.
    """

    def __init__(self, rng: random.Random, *, blobs: bool, sequence: int = 0) -> None:
        self._rng = rng
        self._blobs = blobs
        self._sequence = sequence
        self._brought = False
        self._held: dict[int, int] = {}
        self._chunk = bytearray()
        self._messages: list[Message] = []

    def build(self) -> list[Message]:
        """The messages, in order."""
        turns: list[Callable[[], None]] = [
            self._memory,
            self._memory,
            self._calls,
            self._program,
            self._library,
            self._streamed,
            self._long_writes,
            self._control,
        ]
        if self._blobs:
            turns.append(self._blob)
        # Each costs the server a process.
        if self._rng.random() < 0.004:
            self._say("control", dict(HELLO))
        for _ in range(self._rng.randint(1, 4)):
            self._rng.choice(turns)()
        self._batch([["free", handle] for handle in self._held])
        if self._rng.random() < 0.01:
            socket = self._rng.choice(["control", "data"])
            self._say(socket, {"type": "goodbye", "session": TOKEN, "epoch": EPOCH})
        return self._messages

    def _say(self, socket: Any, header: dict[str, object], chunk: bytes | None = None) -> None:
        self._messages.append(Message(socket, header, chunk))

    def _batch(self, commands: list[Command]) -> None:
        self._sequence += 1
        header: dict[str, object] = {
            "type": "batch",
            "session": TOKEN,
            "epoch": EPOCH,
            "sequence": sequence(self._sequence),
            "commands": commands,
        }
        chunk, self._chunk = bytes(self._chunk), bytearray()
        self._say("data", header, chunk or None)

    def _allocate(self, nbytes: int) -> Iterator[Command]:
        handle = self._rng.randint(1, 60)
        while handle in self._held:
            handle += 1
        self._held[handle] = nbytes
        yield ["allocate", handle, nbytes]

    def _put(self, nbytes: int) -> int:
        """Payload into the batch's chunk; where it begins."""
        self._chunk += bytes(-len(self._chunk) % 8)
        position = len(self._chunk)
        self._chunk += self._rng.randbytes(nbytes)
        return position

    def _memory(self) -> None:
        rng = self._rng
        commands: list[Command] = []
        for _ in range(rng.randint(1, 3)):
            commands += self._allocate(rng.choice([0, 1, 7, 8, 64, 1000, 4096, 65536]))
        for _ in range(rng.randint(1, 6)):
            handle = rng.choice(list(self._held))
            size = self._held[handle]
            start = rng.randint(0, size)
            length = rng.randint(0, size - start)
            kind = rng.randrange(5)
            if kind == 0:
                length = min(length, 512)
                commands.append(["write", handle, start, length, self._put(length)])
            elif kind == 1:
                pattern = rng.randbytes(rng.choice([1, 3, 4, 16, 4096]))
                commands.append(["fill", handle, start, length, pattern])
            elif kind == 2:
                commands.append(["read", handle, start, length])
            elif kind == 3:
                half = size // 2
                commands.append(["copy", handle, 0, handle, half, half])
            else:
                commands.append(["fence"])
        if rng.random() < 0.3:
            handle = rng.choice(list(self._held))
            del self._held[handle]
            commands.append(["free", handle])
        self._batch(commands)

    def _library(self) -> None:
        self._brought = True
        packed = packed_library()
        digest = hashlib.sha256(packed).hexdigest()
        self._say_blob({"operation": "holds", "digests": [digest, "0" * 64]})
        half = len(packed) // 2
        for start, end in ((0, half), (half, len(packed))):
            piece: dict[str, object] = {"digest": digest, "total": len(packed), "offset": start}
            self._say_blob({"operation": "put", **piece}, packed[start:end])
        self._say_blob({"operation": "attach", "digest": digest})
        self._batch([["unload", _LIBRARY], ["load", _LIBRARY, digest]])
        self._say_blob({"operation": "detach", "digest": digest})

    def _calls(self) -> None:
        rng = self._rng
        if not self._brought:
            self._library()
        count = rng.choice([1, 16, 1000])
        commands: list[Command] = []
        tensors = []
        for _ in range(2):
            (allocate,) = self._allocate(4 * count)
            commands.append(allocate)
            tensors.append([allocate[1], 0, [count], "float32"])
        size = min(4 * count, 64)
        commands.append(["write", tensors[0][0], 0, size, self._put(size)])
        options: dict[str, Any] = rng.choice(
            [{}, {}, {"timed": True}, {"workspace_poison": b"\x7f\xc0\0\0"}]
        )
        commands.append(["call", _LIBRARY, "add_one", tensors, {}, options])
        timed: dict[str, Any] = {"timed": True}
        if rng.random() < 0.6:
            body = [["call", _LIBRARY, "add_one", tensors, {}, options] for options in ({}, timed)]
            commands.append(["program", "calls", body])
            commands += [["execute", "calls", [], 0]] * rng.randint(1, 20)
            commands.append(["forget", "calls"])
        commands.append(["read", tensors[1][0], 0, size])
        self._batch(commands)

    def _program(self) -> None:
        rng = self._rng
        size = rng.choice([8, 64, 4096])
        (allocate,) = self._allocate(size)
        handle = allocate[1]
        body: list[Command] = [
            ["write", handle, {"argument": 0}, 4, 0],
            ["fill", handle, 4, {"argument": 1}, rng.randbytes(rng.choice([1, 3, 16]))],
            ["copy", handle, 0, handle, size // 2, min(4, size // 2)],
            ["read", handle, 0, size],
            ["fence"],
        ][: rng.randint(2, 5)]
        name = rng.choice(["step", "s", "ß" * 256])
        commands: list[Command] = [allocate, ["forget", name]]
        commands.append(["program", name, body])
        for _ in range(rng.randint(1, 4)):
            arguments = [rng.randint(0, size - 4), rng.randint(0, size - 4)]
            commands.append(["execute", name, arguments, self._put(4)])
        if rng.random() < 0.5:
            commands.append(["forget", name])
        self._batch(commands)

    def _streamed(self) -> None:
        (allocate,) = self._allocate(_STREAMED_BYTES)
        handle = allocate[1]
        self._batch([allocate, ["read", handle, 0, _STREAMED_BYTES]])
        credit = {"type": "credit", "session": TOKEN, "epoch": EPOCH, "bytes": _STREAMED_BYTES}
        self._say("data", credit)
        del self._held[handle]
        self._batch([["free", handle], ["reset"]])

    def _long_writes(self) -> None:
        (allocate,) = self._allocate(2 * _LONG_BYTES)
        handle = allocate[1]
        self._batch([allocate])
        for _ in range(self._rng.randint(1, 3)):
            # After some short batches a worker may read the socket itself.
            for _ in range(self._rng.choice([0, 1, 5])):
                self._batch([["fence"]])
            size = self._rng.randint(_LONG_BYTES // 2, 2 * _LONG_BYTES)
            self._batch([["write", handle, 2 * _LONG_BYTES - size, size, self._put(size)]])
        self._batch([["read", handle, 0, 64]])

    def _control(self) -> None:
        number = self._rng.randint(0, 100)
        self._say("control", {"type": "ping", "session": TOKEN, "sequence": number})
        if self._rng.random() < 0.3:
            self._say("control", {"type": "cancel", "session": TOKEN, "sequence": sequence(0)})

    def _blob(self) -> None:
        # Only few different ones: a server keeps them, and its memory is checked in the end.
        payload = self._rng.choice([b"a", b"b", bytes(64), bytes(range(256)) * 16])
        digest = hashlib.sha256(payload).hexdigest()
        whole: dict[str, object] = {"digest": digest, "total": len(payload), "offset": 0}
        self._say_blob({"operation": "holds", "digests": [digest]})
        self._say_blob({"operation": "put", **whole}, payload)
        self._say_blob({"operation": "attach", "digest": digest})
        (allocate,) = self._allocate(len(payload))
        handle = allocate[1]
        paste = ["paste", handle, 0, digest, 0, len(payload)]
        self._batch([allocate, paste, ["read", handle, 0, len(payload)]])

    def _say_blob(self, fields: dict[str, object], chunk: bytes | None = None) -> None:
        self._sequence += 1
        header: dict[str, object] = {
            "type": "blob",
            "session": TOKEN,
            "epoch": EPOCH,
            "sequence": sequence(self._sequence),
            **fields,
        }
        self._say("data", header, chunk)
