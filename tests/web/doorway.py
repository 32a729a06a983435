"""What stands between a browser and its tracker, so that a test can cut the way."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Doorway:
    """Copies TCP streams from a port of its own to a tracker's; a context manager.

    Parameters
    ----------
    address
        ``ws://127.0.0.1:PORT``.

    Attributes
    ----------
    address
        Where a browser comes instead.
    passed
        Bytes that have come from there and gone to there.
    """

    def __init__(self, address: str) -> None:
        self.passed = 0
        self._port = urlsplit(address).port
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.address = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self.cut()
        asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """End every connection without a word; new ones pass."""
        done = threading.Event()

        def cut() -> None:
            for writer in self._open:
                writer.transport.abort()
            done.set()

        self._loop.call_soon_threadsafe(cut)
        done.wait()

    async def _ended(self) -> None:
        """Wait until nothing is copied any more."""
        copying = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*copying, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        both = {writer, there[1]}
        self._open |= both
        await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))
        self._open -= both

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 18):
                self.passed += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
