"""Weights come to a device together, once, and from what its server holds already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from tapml.execute.arrays import Array
from tapml.execute.device import DeviceMemory
from tapml_rpc.blobs.store import BlobStore
from tapml_targets.driver import DeviceDescription
from tests.conftest import RequireDevice
from tests.rpc.blobs.joined import open_joined

WEIGHTS = {
    f"layer.{number}": np.random.default_rng(number).random((64 + number, 512), np.float32)
    for number in range(6)
} | {"norm": np.ones(16, np.float32)}
NBYTES = sum(array.nbytes for array in WEIGHTS.values())


class Counted(Mapping[str, Array]):
    """The weights, and which of them were read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __getitem__(self, name: str) -> Array:
        self.read.append(name)
        return WEIGHTS[name]

    def __iter__(self) -> Iterator[str]:
        return iter(WEIGHTS)

    def __len__(self) -> int:
        return len(WEIGHTS)


@pytest.fixture
def device(require_device: RequireDevice) -> DeviceDescription:
    return require_device("opencl")[0]


@pytest.fixture
def store() -> Iterator[BlobStore]:
    kept = BlobStore(64 << 20)
    yield kept
    kept.close()


def test_a_second_session_sends_small_weights_alone(
    device: DeviceDescription, store: BlobStore
) -> None:
    sent = []
    for _ in range(2):
        session, transport = open_joined(device, store)
        with session:
            memory = DeviceMemory(session)
            buffers = memory.weights(list(WEIGHTS), WEIGHTS)
            for name, array in WEIGHTS.items():
                assert bytes(memory.read(buffers[name])) == array.tobytes()
            sent.append(transport.chunk_bytes)
            assert transport.operations.count("holds") == 1
            assert memory.weight_bytes_written == memory.bytes_written == NBYTES
            del buffers, memory
    assert sent == [NBYTES, WEIGHTS["norm"].nbytes]


def test_weights_on_the_device_are_neither_read_nor_sent_again(
    device: DeviceDescription, store: BlobStore
) -> None:
    session, transport = open_joined(device, store)
    with session:
        memory, weights = DeviceMemory(session), Counted()
        first = memory.weight("norm", weights["norm"])
        everything = memory.weights(list(WEIGHTS), weights)
        assert everything["norm"] is first
        assert sorted(weights.read) == sorted(WEIGHTS)
        sent = transport.chunk_bytes
        assert memory.weights(list(WEIGHTS), weights) == everything
        assert (len(weights.read), transport.chunk_bytes) == (len(WEIGHTS), sent)
        del first, everything, memory
