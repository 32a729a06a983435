"""What a page keeps by hash: weights and Libraries are sent once, whoever comes next."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from tapml.devices.reach import open_device
from tapml_rpc.remote import RemoteTensor
from tapml_rpc.session import Session
from tapml_rpc.uploads import BlobWrite
from tests.rpc.tracker.trackers import TrackerProcess, wait_for
from tests.targets.libraries import library as small_library
from tests.web.doorway import Doorway
from tests.web.pages import NAME, DevicePage, device_page

MEBIBYTE = 1 << 20
# Kernels, answers and heartbeats; far less than the weights.
BESIDE_BYTES = 256 << 10


def content(seed: int, nbytes: int) -> bytes:
    return random.Random(seed).randbytes(nbytes)


# One of the page's copies gets other bytes under its name.
DAMAGE = """(async () => {
    const cache = await caches.open("tapml-blobs");
    const [one] = (await cache.keys()).filter((each) => each.url.endsWith("524288"));
    await cache.put(one, new Response(new Uint8Array(524288)));
    document.body.dataset.damaged = "yes";
})()"""
WEIGHTS = [content(seed, 2 * MEBIBYTE + 3 * seed) for seed in range(5)]


@pytest.fixture(scope="module")
def doorway(tracker: TrackerProcess) -> Iterator[Doorway]:
    with Doorway(tracker.websocket) as way:
        yield way


@pytest.fixture(scope="module")
def shown(
    tracker: TrackerProcess, doorway: Doorway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DevicePage]:
    """The page, behind a doorway that counts what passes."""
    with device_page(tmp_path_factory.mktemp("browser"), tracker, doorway.address) as page:
        yield page


def bring(session: Session, weights: list[bytes]) -> int:
    """Have the device hold weights, look whether it does, and use it; bytes that were sent."""
    buffers = [session.allocate(len(data)) for data in weights]
    sent = session.write_blobs(
        BlobWrite(buffer, data) for buffer, data in zip(buffers, weights, strict=True)
    )
    for buffer, data in zip(buffers, weights, strict=True):
        at = len(data) // 3
        assert bytes(session.read(buffer, 1000, at)) == data[at : at + 1000]
        assert bytes(session.read(buffer, 5, len(data) - 5)) == data[-5:]
    library = session.upload(small_library("webgpu"))
    tensor = RemoteTensor(buffers[0], 0, (256,), "float32")
    session.fill(buffers[0], bytes(4))
    session.call(library, "add_one", [tensor, tensor])
    np.testing.assert_array_equal(np.frombuffer(session.read(buffers[0], 1024), np.float32), 1)
    return sent


def test_a_second_session_on_the_same_weights_uploads_nothing(
    shown: DevicePage, doorway: Doorway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_TRACKER", shown.tracker.address)
    sent, passed = [], []
    for _ in range(2):
        before = doorway.passed
        with open_device(f"tracker:{NAME}") as session:
            sent.append(bring(session, WEIGHTS))
        passed.append(doorway.passed - before)
    total = sum(map(len, WEIGHTS))
    assert sent == [total, 0]
    assert passed[0] > total
    assert passed[1] < BESIDE_BYTES, f"{passed[1]} bytes went to and from the page"


def test_equal_bytes_go_there_once_and_windows_are_written_alone(session: Session) -> None:
    data = content(77, MEBIBYTE)
    buffer = session.allocate(3 * MEBIBYTE)
    session.fill(buffer, b"\x07")
    sent = session.write_blobs(
        [BlobWrite(buffer, data, 13), BlobWrite(buffer, data, 2 * MEBIBYTE - 1)]
    )
    assert sent == MEBIBYTE
    found = bytes(session.read(buffer))
    expected = bytearray(b"\x07" * len(found))
    expected[13 : 13 + MEBIBYTE] = data
    expected[2 * MEBIBYTE - 1 : 3 * MEBIBYTE - 1] = data
    assert found == expected


def test_where_a_person_wants_it_weights_outlive_the_page(
    shown: DevicePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPML_TRACKER", shown.tracker.address)
    weights = [content(seed, MEBIBYTE // 2) for seed in (200, 201)]

    def visit() -> int:
        """Load the page again, bring the weights there; bytes that were sent."""
        shown.open()
        shown.wait_ready()
        with open_device(f"tracker:{NAME}") as session:
            return bring(session, weights)

    assert visit() == MEBIBYTE
    # Nobody has asked for it: with the page they are gone.
    assert visit() == MEBIBYTE
    shown.click("#keep")
    # What is here already is copied.
    shown.wait("#disk", "1 MiB")
    assert visit() == 0
    assert shown.evaluate("document.querySelector('#keep').checked")
    # A copy that is damaged is none, and is brought again.
    shown.evaluate(DAMAGE)
    wait_for(lambda: shown.evaluate("document.body.dataset.damaged"))
    assert visit() == MEBIBYTE // 2
    shown.click("#keep")
    shown.wait("#disk", "0 bytes")
    assert visit() == MEBIBYTE
    assert shown.page.complaints == []
