"""The page of a run that is being watched, served by its own process while it trains."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from tapml.invariants.checking import CheckReport, step_text
from tapml.invariants.invariant import Invariant
from tapml.invariants.page import render
from tapml.report.server import PageServer


@contextmanager
def live_page(
    report: Callable[[], CheckReport],
    lock: threading.Lock,
    port: int,
    watched: Sequence[Invariant] = (),
) -> Iterator[str]:
    """Serve a page on this machine inside the block; it shows violations as they are found.

    Parameters
    ----------
    report
        What was found so far.
    lock
        Held by whoever changes that.
    port
        0 for a free one.
    watched
        What is to hold.

    Yields
    ------
    str
        The page's address.

    Raises
    ------
    InputError
        If it cannot listen on the port.
    """

    def version() -> int:
        with lock:
            return report().violated

    def page() -> str:
        with lock:
            found = report()
            return render(found, version=found.violated, watched=watched)

    def news() -> bytes:
        with lock:
            found = report()
        text = f"Training, {step_text(found.steps)}: {found.headline}."
        return msgspec.json.encode({"version": found.violated, "text": text})

    with PageServer(page, version, {"live.json": news}, port=port) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.1,), name="live-page", daemon=True
        )
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()
            # A forked child, such as a worker of a DataLoader, may hold a copy that still listens.
            with suppress(OSError):
                server.socket.shutdown(socket.SHUT_RDWR)
