"""A session, its requests for blobs and an interpreter on a device, joined by descriptors."""

from __future__ import annotations

import socket
from typing import Any

from tapml_rpc import wire
from tapml_rpc.blobs.messages import Answer, BlobRequests
from tapml_rpc.blobs.store import BlobStore
from tapml_rpc.device.interpreter import Interpreter
from tapml_rpc.device.libraries import AttachedBlobs
from tapml_rpc.failures import failure_to_wire
from tapml_rpc.in_process import InProcessTransport
from tapml_rpc.session import Session
from tapml_rpc.transport import Ticket
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import TapmlError
from tapml_targets.platforms import load_driver_module

SESSION_BOUND = 1 << 30


class JoinedTransport(InProcessTransport):
    """Runs batches on the device and answers ``blob`` messages.

    Attributes
    ----------
    chunk_bytes
        Bytes of chunks that a client would have sent over the wire.
    operations
        What was asked, in order.
    """

    def __init__(
        self,
        device: DeviceDescription,
        store: BlobStore,
        identity: str = "somebody",
        bound: int = SESSION_BOUND,
    ) -> None:
        driver = load_driver_module(device.platform).open_device(device)
        super().__init__(driver)
        self.features = self.features | {wire.BLOBS}
        self.blobs = AttachedBlobs()
        self.requests = BlobRequests(store, identity, bound)
        self.chunk_bytes = 0
        self.operations: list[str] = []
        self._interpreter = Interpreter(
            driver, self._libraries, self.bounds, self._deliver, blobs=self.blobs
        )
        self._unanswered: dict[int, Ticket] = {}
        self._supervisor, self._worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def send(self, commands: list[list[Any]], chunk: Any, *rest: Any) -> Ticket:
        """Run a batch."""
        self.chunk_bytes += len(chunk)
        return super().send(commands, chunk, *rest)

    def request(self, fields: dict[str, Any], chunk: memoryview | bytes = b"") -> Ticket:
        """Ask for something; as it would come over a wire."""
        self._check()
        self._sequence += 1
        ticket = Ticket(self._sequence, len(chunk), {})
        self.chunk_bytes += len(chunk)
        header = wire.unpack(wire.pack({**fields, "sequence": ticket.sequence}))
        self.operations.append(header["operation"])
        self._unanswered[ticket.sequence] = ticket
        try:
            self._take(self.requests.handle(header, memoryview(chunk)))
        except TapmlError as error:
            failure = failure_to_wire(error)
            self._take(({"type": "error", "sequence": ticket.sequence, "error": failure}, None))
        return ticket

    def wait(self, ticket: Ticket) -> None:
        """Wait for an answer that hangs on the store's disk."""
        super_wait = super().wait
        while ticket.sequence in self._unanswered:
            for answer in self.requests.due():
                self._take(answer)
        super_wait(ticket)

    def close(self) -> None:
        """End the session as a supervisor does."""
        if not self.closed:
            self.requests.close()
            self.blobs.close()
            self._supervisor.close()
            self._worker.close()
        super().close()

    def _take(self, answer: Answer) -> None:
        reply, attachment = answer
        if attachment is not None:
            self._attach(*attachment)
        if reply is not None:
            self._unanswered.pop(reply["sequence"]).answer(reply, memoryview(b""))

    def _attach(self, digest: str, descriptor: int, nbytes: int) -> None:
        if descriptor < 0:
            self.blobs.receive(digest, -1, 0)
            return
        socket.send_fds(self._supervisor, [b"x"], [descriptor])
        _, received, _, _ = socket.recv_fds(self._worker, 1, 1)
        self.blobs.receive(digest, received[0], nbytes)


def open_joined(
    device: DeviceDescription,
    store: BlobStore,
    identity: str = "somebody",
    bound: int = SESSION_BOUND,
) -> tuple[Session, JoinedTransport]:
    """A session whose blobs `store` keeps, and its transport."""
    transport = JoinedTransport(device, store, identity, bound)
    return Session(transport), transport
