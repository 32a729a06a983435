"""What a session needs of its device's transport, for every kind of it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from tapml_rpc import wire
from tapml_rpc.bounds import Bounds
from tapml_rpc.failures import failure_from_wire
from tapml_rpc.pending import Pending, PendingResults
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError, TapmlError


class Ticket:
    """A message under way and its future answer: a batch's results, or one value.

    `value` is the answer to a message other than a batch, `failure` the error that came instead.
    """

    __slots__ = ("chunk_bytes", "done", "failure", "pending", "sequence", "value")

    def __init__(self, sequence: int, chunk_bytes: int, pending: PendingResults) -> None:
        self.sequence = sequence
        self.chunk_bytes = chunk_bytes
        self.pending = pending
        self.done = False
        self.failure: TapmlError | None = None
        self.value: Any = None

    def answer(self, header: wire.Header, chunk: memoryview) -> None:
        """Take the answer: its results, or the error instead of them."""
        self.value = header.get("value")
        for result in wire.array(header.get("results", []), "results"):
            index, value = wire.array(result, "result", 2)
            pending = self.find(index)
            if pending is not None:
                pending.resolve(value, chunk)
        self.finish(header)

    def find(self, index: Any) -> Pending | None:
        """The result of a command of the batch, or of one inside the program which that runs."""
        if type(index) is list and len(index) == 2:
            index = tuple(wire.integer(each, "index") for each in index)
        else:
            wire.integer(index, "index")
        return self.pending.get(index)

    def finish(self, header: wire.Header) -> None:
        """Note that the batch is answered; missing results will not come."""
        failure = header.get("error")
        if failure is not None:
            self.failure = failure_from_wire(failure)
        if self.pending:
            missing = self.failure or ProtocolError("the server's answer lacks a result")
            for pending in self.pending.values():
                pending.fail(missing)
        self.done = True


class Transport(Protocol):
    """Sends batches to a device and brings their answers; used by one thread at a time.

    Attributes
    ----------
    device
        The other end's description of its device.
    address
        The other end's address, for people.
    epoch
        Random bytes that identify its lifetime.
    features
        What it can do beyond the protocol's version.
    bounds
        What a session may hold there.
    """

    device: DeviceDescription
    address: str
    epoch: bytes
    features: frozenset[str]
    bounds: Bounds
    closed: bool

    def send(
        self,
        commands: list[list[Any]],
        chunk: memoryview | bytes,
        pending: PendingResults | None = None,
        stream: int = 0,
    ) -> Ticket:
        """Send a batch; waits only while there is no room for it.

        Parameters
        ----------
        chunk
            Payload of all writes; a large one must not change until it is answered.
        pending
            The results of `commands` by index of the command; inside a program by that of the
            command that runs it and that in the program.
        """

    def wait(self, ticket: Ticket) -> None:
        """Wait for a batch's answer.

        Raises
        ------
        DeviceLostError
            If the other end is gone, or a subclass that says why.
        """

    def drain(self) -> bool:
        """Take the answers that are there; True when no batch is under way."""

    def cancel(self) -> None:
        """Ask to skip the batches sent so far; a running kernel is not stopped."""

    def close(self) -> None:
        """End the connection. Never raises and never waits long."""


@runtime_checkable
class BlobTransport(Transport, Protocol):
    """A transport whose other end may keep blobs: it has the feature ``blobs`` then."""

    def request(self, fields: dict[str, Any], chunk: memoryview | bytes = b"") -> Ticket:
        """Send a message other than a batch, within the same bounds and in order with batches.

        The session, epoch and sequence number are added to `fields`, which include ``type``. A
        large `chunk` must not change until it is answered. The ticket's `value` comes with the
        answer.
        """
