"""A device driven by this process: no server and no socket.

For validated models that must be fast: a decode step saves the way to another process and back. The
protection of a separate process is lost: a driver that crashes takes this process along, and a
kernel that hangs is not ended at its deadline. Machine code, which only a server's flag allows, is
refused.
"""

from __future__ import annotations

import os
import secrets
from typing import Any, Final

from tapml_rpc import wire
from tapml_rpc.blobs.messages import BlobRequests
from tapml_rpc.blobs.store import BlobStore
from tapml_rpc.device.interpreter import Interpreter
from tapml_rpc.device.libraries import AttachedBlobs, LibraryStore
from tapml_rpc.device.session_state import EPOCH_BYTES, Message, ServerSession
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.session import Session
from tapml_rpc.transport import PendingResults, Ticket
from tapml_rpc.welcome import Bounds
from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.errors import DeviceLostError, InputError, ProtocolError, TapmlError
from tapml_targets.platforms import load_driver_module

_NO_CHUNK: Final = memoryview(b"")


def open_in_process(description: DeviceDescription) -> Session:
    """Open a device of this machine, from :mod:`tapml_targets.ranking`, in this process.

    Raises NoSuchDeviceError if this process does not see it: its driver loader may have been
    set up before tapml was asked, and :func:`tapml_rpc.local.open_local` reaches it
    nevertheless; SetupError if its driver does not open it.
    """
    driver = load_driver_module(description.platform).open_device(description)
    return Session(InProcessTransport(driver))


class InProcessTransport:
    """Runs batches at once; see :class:`tapml_rpc.transport.Transport`. Closes its `driver`."""

    def __init__(self, driver: Driver) -> None:
        self.device = driver.description
        self.address = "this process"
        self.epoch = secrets.token_bytes(EPOCH_BYTES)
        self.features: frozenset[str] = frozenset()
        self.bounds = Bounds()
        self.closed = False
        self._driver = driver
        self._owner = os.getpid()
        most = self.bounds.library_bytes
        self._store = BlobStore(most)
        self._requests = BlobRequests(self._store, "", most)
        self._blobs = AttachedBlobs()
        self._libraries = LibraryStore(driver, library_bytes=most, allow_native=False)
        self._session = ServerSession(self.bounds.download_window)
        self._interpreter = Interpreter(
            driver, self._libraries, self._blobs, self.bounds, self._deliver
        )
        self._sequence = 0
        # The running batch; it stays set after an interrupt.
        self._running: Ticket | None = None

    def send(
        self,
        commands: list[list[Any]],
        chunk: memoryview | bytes,
        pending: PendingResults | None = None,
    ) -> Ticket:
        """Run a batch; it is answered when this returns."""
        self._check()
        self._sequence += 1
        ticket = self._running = Ticket(self._sequence, len(chunk), pending or {})
        message = Message(ticket.sequence, commands, memoryview(chunk))
        for _ in self._interpreter.run(self._session, message):
            # It waits for room to stream into: what came before has been copied by now.
            self._session.download_credit = self.bounds.download_window
        self._running = None
        return ticket

    def request(self, fields: dict[str, Any], chunk: memoryview | bytes = b"") -> Ticket:
        """Answer about a blob at once; see :class:`tapml_rpc.transport.Transport`."""
        self._check()
        self._sequence += 1
        ticket = Ticket(self._sequence, len(chunk), {})
        try:
            reply, attachment = self._requests.handle(
                {**fields, "sequence": ticket.sequence}, memoryview(chunk)
            )
        except TapmlError as error:
            ticket.finish({"error": failure_to_wire(error)})
            return ticket
        if attachment is not None:
            digest, descriptor, nbytes = attachment
            own = os.dup(descriptor) if descriptor >= 0 else -1
            self._blobs.receive(digest, own, nbytes)
        ticket.answer(reply or {}, _NO_CHUNK)
        return ticket

    def wait(self, ticket: Ticket) -> None:
        """A batch is answered as soon as it is sent."""
        if not ticket.done:
            self._check()

    def drain(self) -> bool:
        """No batch is ever under way."""
        return True

    def cancel(self) -> None:
        """Ask to skip what has not started; callable from any thread."""
        self._session.cancel_through = self._sequence

    def close(self) -> None:
        """Free everything and close the device."""
        if self.closed or os.getpid() != self._owner:
            # A forked child has none of the driver's threads.
            self.closed = True
            return
        self.closed = True
        try:
            self._interpreter.release(self._session)
            self._libraries.close()
            self._requests.close()
            self._blobs.close()
            self._store.close()
        finally:
            self._driver.close()

    def _check(self) -> None:
        if self.closed:
            raise InputError("this session is closed; open a new one")
        if os.getpid() != self._owner:
            raise InputError("this session belongs to the process that forked this one")
        if self._running is not None:
            raise DeviceLostError(
                "a command on the device was interrupted half-way; open a new session"
            )

    def _deliver(self, header: wire.Header, parts: list[memoryview | bytes]) -> None:
        ticket = self._running
        assert ticket is not None  # noqa: S101 - batches run inside `send` alone
        if header["type"] == "done":
            chunk = parts[0] if len(parts) == 1 else b"".join(parts)
            ticket.answer(header, memoryview(chunk) if parts else _NO_CHUNK)
            return
        pending = ticket.find(header["index"])
        if pending is None:
            raise ProtocolError("bytes that no read asked for")
        pending.place(header["offset"], memoryview(parts[0]))
