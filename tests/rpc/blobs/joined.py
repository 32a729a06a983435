"""A session in this process whose blobs a given store keeps."""

from __future__ import annotations

from typing import Any

from tapml.package.in_process import InProcessTransport
from tapml_rpc import wire
from tapml_rpc.blobs.messages import BlobRequests
from tapml_rpc.blobs.store import BlobStore
from tapml_rpc.remote import RemoteBuffer
from tapml_rpc.session import Session
from tapml_rpc.transport import Ticket
from tapml_rpc.uploads import BlobWrite
from tapml_targets.driver import DeviceDescription
from tapml_targets.platforms import load_driver_module

SESSION_BOUND = 1 << 30


class JoinedTransport(InProcessTransport):
    """Counts what a client would have sent over the wire.

    Attributes
    ----------
    chunk_bytes
        Bytes of chunks.
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
        super().__init__(load_driver_module(device.platform).open_device(device))
        self.features = self.features | {wire.BLOBS}
        self._requests = BlobRequests(store, identity, bound)
        self.blobs = self._blobs
        self.chunk_bytes = 0
        self.operations: list[str] = []

    def send(self, commands: list[list[Any]], chunk: Any, *rest: Any) -> Ticket:
        """Run a batch."""
        self.chunk_bytes += len(chunk)
        return super().send(commands, chunk, *rest)

    def request(self, fields: dict[str, Any], chunk: memoryview | bytes = b"") -> Ticket:
        """Ask for something; as it would come over a wire."""
        self.chunk_bytes += len(chunk)
        header = wire.unpack(wire.pack(fields))
        self.operations.append(header["operation"])
        return super().request(header, chunk)


def open_joined(
    device: DeviceDescription,
    store: BlobStore,
    identity: str = "somebody",
    bound: int = SESSION_BOUND,
) -> tuple[Session, JoinedTransport]:
    """A session whose blobs `store` keeps, and its transport."""
    transport = JoinedTransport(device, store, identity, bound)
    return Session(transport), transport


def write_blob(
    session: Session, buffer: RemoteBuffer, data: Any, offset: int = 0, digest: str | None = None
) -> int:
    """Bring one blob; how many bytes were sent."""
    return session.write_blobs([BlobWrite(buffer, data, offset, digest)])
