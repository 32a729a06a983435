"""Copies TCP streams late, in small pieces and not while the link is cut: no packet is ever lost.

``python -m tests.rpc.stream_carrier DELAY LOSS RATE`` listens on 127.0.0.2 at every port it is told
(``port 9190`` on standard input) and connects to the same port of 127.0.0.1. A loss is what it is
to the reader of a TCP stream: a pause, as long as a retransmission takes.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

SERVER, CLIENT = "127.0.0.1", "127.0.0.2"
_PIECE_BYTES = 1400
_IN_FLIGHT = 256
_RETRANSMISSION_SECONDS = 0.03


class Carrier:
    """Copies between pairs of connections."""

    def __init__(self, delay: float, loss: float, rate: float) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self._delay, self._loss = delay, loss
        # Without a limit pieces are larger: they are packets only in name.
        self._piece_bytes = _PIECE_BYTES if rate or loss else 1 << 18
        self._rate = rate
        self._random = random.Random(20240229)

    async def serve(self, port: int) -> None:
        """Listen at a port."""

        async def connected(
            from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
        ) -> None:
            try:
                from_server, to_server = await asyncio.open_connection(SERVER, port)
            except OSError:
                to_client.close()
                return
            await asyncio.gather(
                self._copy(from_client, to_server), self._copy(from_server, to_client)
            )

        await asyncio.start_server(connected, CLIENT, port)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)
        delivery = asyncio.create_task(self._deliver(on_way, writer))
        free_at = 0.0
        data = b"?"
        while data:
            try:
                data = await reader.read(self._piece_bytes)
            except OSError:
                data = b""
            now = time.monotonic()
            free_at = max(now, free_at) + (len(data) / self._rate if self._rate else 0.0)
            if self._random.random() < self._loss:
                free_at += _RETRANSMISSION_SECONDS
            await on_way.put((free_at + self._delay, data))
        await delivery

    async def _deliver(
        self, on_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due, data = await on_way.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self.open.wait()
            try:
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()
            except OSError:
                return


async def main() -> None:
    """Carry until standard input ends."""
    carrier = Carrier(*map(float, sys.argv[1:]))
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    print("ready", flush=True)
    while order := (await orders.readline()).decode().split():
        if order[0] == "port":
            await carrier.serve(int(order[1]))
        elif order[0] == "cut":
            carrier.open.clear()
        else:
            carrier.open.set()
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
