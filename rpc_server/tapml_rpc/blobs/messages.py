"""The ``blob`` messages of one session: requests, answers, and what its worker gets."""

from __future__ import annotations

from typing import Final, TypeAlias

from tapml_rpc import wire
from tapml_rpc.blobs.folder import DIGEST
from tapml_rpc.blobs.index import Arrival
from tapml_rpc.blobs.memory import cost
from tapml_rpc.blobs.store import Attachment, BlobStore
from tapml_targets.errors import InputError, ProtocolError, TapmlError

MAX_ARRIVALS: Final = 4
MAX_DIGESTS: Final = 4096

Answer: TypeAlias = tuple[wire.Header, Attachment | None]


class BlobRequests:
    """One session's access to the blob store. No two of its methods run at the same time.

    The session sees only what its `identity` owns. Its unfinished uploads and what it has attached
    may together take `session_bound` bytes.
    """

    def __init__(self, store: BlobStore, identity: str, session_bound: int) -> None:
        self._store = store
        self._identity = identity
        self._bound = session_bound
        self._arrivals: dict[str, Arrival] = {}
        self._attached: dict[str, int] = {}

    def handle(self, header: wire.Header, chunk: memoryview) -> Answer:
        """Handle a message; it may have to wait for a disk.

        Returns the reply, and what to tell the session's worker, if anything: a descriptor to send
        along, or with -1 to release a blob. Raises ProtocolError if the message is malformed, a
        piece is out of place, or the hash differs; InputError if there is no room, and the same
        bytes can be written without the store; SetupError if the machine has no memory left.
        """
        sequence = wire.integer(header.get("sequence"), "sequence")
        operation = wire.text(header.get("operation"), "operation", 16)
        if operation == "holds":
            asked = wire.array(header.get("digests"), "digests", MAX_DIGESTS)
            held = [self._store.holds(self._identity, _digest(digest)) for digest in asked]
            return _done(sequence, held), None
        digest = _digest(header.get("digest"))
        if operation == "put":
            total = wire.integer(header.get("total"), "blob size")
            offset = wire.integer(header.get("offset"), "offset")
            return _done(sequence, self._put(digest, total, offset, chunk)), None
        if operation == "attach":
            return self._attach(sequence, digest)
        if operation == "detach":
            let_go = self._attached.pop(digest, None) is not None
            self._store.detach(self, digest)
            return _done(sequence, let_go), Attachment(digest, -1, 0) if let_go else None
        raise ProtocolError(
            f"unknown blob operation {operation!r}; known: holds, put, attach, detach"
        )

    def close(self) -> None:
        """The session has ended: its uploads and attachments are released."""
        for arrival in self._arrivals.values():
            self._store.abandon(arrival)
        self._arrivals.clear()
        for digest in self._attached:
            self._store.detach(self, digest)
        self._attached.clear()

    def _put(self, digest: str, total: int, offset: int, piece: memoryview) -> bool:
        if offset == 0:
            self._begin(digest, total)
        arrival = self._arrivals.get(digest)
        if arrival is None or arrival.total != total:
            raise ProtocolError(
                f"a piece at {offset} of a blob {digest[:12]} of {total} bytes that is not on its "
                "way; begin at 0"
            )
        try:
            if not arrival.take(offset, piece):
                return False
        except TapmlError:
            self._drop(digest)
            raise
        del self._arrivals[digest]
        self._store.keep(arrival)
        return True

    def _begin(self, digest: str, total: int) -> None:
        self._drop(digest)
        if not total:
            raise ProtocolError("a blob has at least one byte")
        if len(self._arrivals) >= MAX_ARRIVALS:
            raise ProtocolError(f"more than {MAX_ARRIVALS} blobs are on their way at once")
        under_way = self._taken()
        if under_way + cost(total) > self._bound:
            raise InputError(
                f"a blob of {total} bytes beside {under_way} on their way or attached; a session "
                f"may have {self._bound}"
            )
        self._arrivals[digest] = self._store.begin(self._identity, digest, total)

    def _taken(self) -> int:
        """Bytes of the store that nobody else can have because of this session."""
        under_way = sum(cost(arrival.total) for arrival in self._arrivals.values())
        return under_way + sum(self._attached.values())

    def _drop(self, digest: str) -> None:
        arrival = self._arrivals.pop(digest, None)
        if arrival is not None:
            self._store.abandon(arrival)

    def _attach(self, sequence: int, digest: str) -> Answer:
        if digest in self._attached:
            return _done(sequence, True), None
        attachment = self._store.attach(self, self._identity, digest)
        if attachment is None:
            return _done(sequence, False), None
        attached = self._taken() + cost(attachment.nbytes)
        if attached > self._bound:
            self._store.detach(self, digest)
            raise InputError(
                f"with a blob of {attachment.nbytes} bytes this session would have {attached} "
                f"attached or on their way; its bound is {self._bound}: detach what it is done with"
            )
        self._attached[digest] = cost(attachment.nbytes)
        return _done(sequence, True), attachment


def _done(sequence: int, value: bool | list[bool]) -> wire.Header:
    return {"type": "blob-done", "sequence": sequence, "value": value}


def _digest(value: object) -> str:
    digest = wire.text(value, "digest", 64)
    if not DIGEST.fullmatch(digest):
        raise ProtocolError(f"a digest is 64 digits of lower-case hexadecimal, got {digest[:60]!r}")
    return digest
