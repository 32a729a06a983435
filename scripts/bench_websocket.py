"""The WebSocket binding against the bare ``websockets`` package: transfers, both ways, in chunks.

Ours is a whole session: batches, credits, the supervisor, a worker that writes to a device's
memory. The peer is what the package does alone: its synchronous client and its asyncio server,
which sends and receives the same chunks and keeps nothing. They take turns within one run, so that
a busy machine slows both.

Run it alone with ``python -m scripts.bench_websocket``.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from websockets.sync.client import ClientConnection, connect

from scripts.bench_runtime import Measurement, take_turns
from tapml_rpc.session import Session
from tapml_rpc.websocket.opening import open_websocket

PEER: Final = "websockets"
TRANSFER_BYTES: Final = {"1 MB": 1 << 20, "16 MB": 16 << 20, "128 MB": 128 << 20}
CHUNK_BYTES: Final = 2 << 20
_SECONDS_PER_MEASUREMENT: Final = 3.0
_OUR_SERVER: Final = """
import sys
from tapml_rpc.supervisor.options import SupervisorOptions
from tapml_rpc.supervisor.hub import Hub
from tapml_rpc.websocket.front import serve_websocket
from tapml_targets.ranking import find_device
if __name__ == "__main__":
    hub = Hub(find_device(sys.argv[1]), SupervisorOptions(device=sys.argv[1]))
    hub.start()
    front = serve_websocket(hub, "127.0.0.1", 0)
    print(front.address, flush=True)
    sys.stdin.read()
    front.close()
    hub.close()
"""
_BARE_SERVER: Final = """
import asyncio, struct, sys
from websockets.asyncio.server import serve

async def handle(connection):
    while True:
        upload, nbytes, chunk = struct.unpack("<?QQ", await connection.recv())
        if upload:
            received = 0
            while received < nbytes:
                received += len(await connection.recv())
            await connection.send(b"done")
        else:
            for start in range(0, nbytes, chunk):
                await connection.send(data[start : min(start + chunk, nbytes)])

async def main():
    async with serve(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
        print(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        await asyncio.to_thread(sys.stdin.read)

data = memoryview(bytes(int(sys.argv[1])))
asyncio.run(main())
"""

Bytes = npt.NDArray[np.uint8]


def measure_websocket(
    seconds: float = _SECONDS_PER_MEASUREMENT, device: str = "cpu"
) -> list[dict[str, Any]]:
    """Measure everything.

    Parameters
    ----------
    seconds
        About how long each line may take.
    device
        Whose memory is written and read; ``cpu`` costs one copy and nothing else.
    """
    with ExitStack() as stack:
        address = stack.enter_context(_server(_OUR_SERVER, device))
        session = stack.enter_context(Session(open_websocket(address, timeout=30)))
        bare = stack.enter_context(_server(_BARE_SERVER, str(max(TRANSFER_BYTES.values()))))
        connection: Any = stack.enter_context(connect(bare, compression=None, max_size=None))
        ours, theirs = _Ours(session), _Bare(connection)
        return [_line(m) for m in _measurements(ours, theirs, seconds)]


def _measurements(ours: _Ours, theirs: _Bare, seconds: float) -> Iterator[Measurement]:
    random = np.random.default_rng(20240229)
    for size, nbytes in TRANSFER_BYTES.items():
        data = random.integers(0, 256, nbytes, dtype=np.uint8)
        for name in ("upload", "download"):

            def run(side: _Ours | _Bare, name: str = name, data: Bytes = data) -> None:
                getattr(side, name)(data)

            times = take_turns({"ours": lambda: run(ours), "theirs": lambda: run(theirs)}, seconds)
            yield Measurement(f"WebSocket {name}, {size}", times["ours"], times["theirs"], nbytes)


class _Ours:
    """A session, doing what is measured."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: dict[int, Any] = {}

    def upload(self, data: Bytes) -> None:
        # Answered when the last byte lies in the device's memory, as the peer's "done" is.
        self._session.write(self._buffer(data), data)

    def download(self, data: Bytes) -> None:
        found = self._session.read(self._buffer(data))
        assert len(found) == data.nbytes and found[-1] == data[-1]

    def _buffer(self, data: Bytes) -> Any:
        if data.nbytes not in self._kept:
            self._kept[data.nbytes] = self._session.allocate(data.nbytes)
        return self._kept[data.nbytes]


class _Bare:
    """The package alone, doing the same; what is received is put together, as a caller needs it."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def upload(self, data: Bytes) -> None:
        self._ask(upload=True, nbytes=data.nbytes)
        view = data.data
        for start in range(0, data.nbytes, CHUNK_BYTES):
            self._connection.send(view[start : start + CHUNK_BYTES])
        assert self._connection.recv() == b"done"

    def download(self, data: Bytes) -> None:
        self._ask(upload=False, nbytes=data.nbytes)
        found = np.empty(data.nbytes, np.uint8).data
        position = 0
        while position < data.nbytes:
            chunk = self._connection.recv(decode=False)
            found[position : position + len(chunk)] = chunk
            position += len(chunk)

    def _ask(self, *, upload: bool, nbytes: int) -> None:
        self._connection.send(struct.pack("<?QQ", upload, nbytes, CHUNK_BYTES))


def _line(measurement: Measurement) -> dict[str, Any]:
    line = measurement.to_dict() | {"part": "websocket", "peer": PEER}
    assert measurement.peer_seconds is not None
    line["peer_megabytes_per_second"] = round(measurement.nbytes / measurement.peer_seconds / 1e6)
    return line


@contextmanager
def _server(code: str, argument: str) -> Iterator[str]:
    """Run a server in a process of its own; the address it prints."""
    with subprocess.Popen(
        [sys.executable, "-c", code, argument], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


def main() -> None:
    """Print the measurements, one JSON object per line."""
    for line in measure_websocket():
        print(json.dumps(line))


if __name__ == "__main__":
    main()
