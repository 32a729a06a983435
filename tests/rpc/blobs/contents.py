"""Blobs for tests, and the messages that bring them."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from tapml_rpc.blobs.messages import BlobRequests
from tapml_rpc.blobs.store import BlobStore

NO_CHUNK = memoryview(b"")


def content(seed: int, nbytes: int) -> bytes:
    """The same bytes for the same seed."""
    return random.Random(seed).randbytes(nbytes)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(store: BlobStore, identity: str, data: bytes, piece: int = 1 << 20) -> str:
    """Bring a blob to a store; its digest."""
    arrival = store.begin(identity, digest_of(data), len(data))
    for start in range(0, len(data), piece):
        arrival.take(start, memoryview(data)[start : start + piece])
    store.keep(arrival)
    return arrival.digest


def settle(store: BlobStore) -> None:
    """Wait until copies under way are on the disk."""
    if store._background is not None:
        store._background.submit(lambda: None).result()


def say(requests: BlobRequests, operation: str, chunk: bytes = b"", **fields: Any) -> Any:
    """The value that a message is answered with at once."""
    header = {"type": "blob", "sequence": 1, "operation": operation, **fields}
    reply, _ = requests.handle(header, memoryview(chunk))
    assert reply is not None and reply["type"] == "blob-done" and reply["sequence"] == 1
    return reply["value"]


def say_put(requests: BlobRequests, data: bytes, piece: int = 1 << 20) -> bool:
    """Put a blob in pieces; the last answer."""
    value = False
    for start in range(0, len(data), piece):
        value = say(
            requests,
            "put",
            data[start : start + piece],
            digest=digest_of(data),
            total=len(data),
            offset=start,
        )
    return value
