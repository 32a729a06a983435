"""The blob store: content once, owned per identity, within a budget."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml_rpc.blobs.index import Arrival
from tapml_rpc.blobs.memory import PAGE_BYTES, BlobMemory
from tapml_rpc.blobs.store import BlobStore
from tapml_targets.errors import InputError, ProtocolError
from tests.rpc.blobs.contents import content, digest_of, put

PAGES = 16
NO_MORE_WRITES = 0x10
ALL_SEALS = NO_MORE_WRITES | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def store() -> Iterator[BlobStore]:
    kept = BlobStore(PAGES * PAGE_BYTES)
    yield kept
    kept.close()


def pages(seed: int, count: int = 1) -> bytes:
    return content(seed, count * PAGE_BYTES)


def test_what_was_put_is_held_and_attached(store: BlobStore) -> None:
    data = content(1, 10_000)
    digest = put(store, "one", data, piece=3000)
    assert store.holds("one", digest)
    attachment = store.attach("session", "one", digest)
    assert attachment is not None
    assert (attachment.digest, attachment.nbytes) == (digest, len(data))
    assert os.pread(attachment.fd, len(data) + 1, 0) == data


def test_memory_is_bounded_by_half_of_what_the_container_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tapml_rpc.blobs.store.usable_bytes", lambda: 8 * PAGE_BYTES)
    store = BlobStore(1 << 40)
    put(store, "one", pages(1, 4))
    with pytest.raises(InputError, match=f"store of {4 * PAGE_BYTES} bytes"):
        store.begin("one", "0" * 64, 5 * PAGE_BYTES)
    store.close()


def test_another_identity_neither_sees_nor_attaches_it(store: BlobStore) -> None:
    digest = put(store, "one", pages(1))
    assert not store.holds("other", digest)
    assert store.attach("session", "other", digest) is None


def test_who_sends_the_same_bytes_owns_them_too_and_they_are_kept_once(store: BlobStore) -> None:
    digest = put(store, "one", pages(1))
    put(store, "other", pages(1))
    assert store.holds("one", digest) and store.holds("other", digest)
    assert store.statistics().memory_bytes == PAGE_BYTES


@pytest.mark.parametrize("memfd", [True, False], ids=["memfd", "temporary file"])
def test_sealed_memory_is_read_and_not_written(memfd: bool) -> None:
    data = content(1, 5000)
    memory = BlobMemory(len(data), memfd=memfd)
    memory.write(0, memoryview(data)[:3000])
    memory.write(3000, memoryview(data)[3000:])
    memory.seal()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [memory.fileno()])
        (received,) = socket.recv_fds(theirs, 1, 1)[1]
    # What has been given away outlives what we hold.
    memory.close()
    with mmap.mmap(received, len(data), mmap.MAP_PRIVATE, mmap.PROT_READ) as mapping:
        assert mapping[:] == data
    with pytest.raises(OSError):
        os.pwrite(received, b"x", 0)
    with pytest.raises((OSError, ValueError)):
        mmap.mmap(received, len(data), mmap.MAP_SHARED, mmap.PROT_WRITE)
    with pytest.raises(OSError):
        os.ftruncate(received, 1)
    if memfd:
        assert fcntl.fcntl(received, fcntl.F_GET_SEALS) == ALL_SEALS
    os.close(received)


@pytest.mark.skipif(not hasattr(os, "splice"), reason="only Linux lends a file's pages to a pipe")
def test_memory_is_sealed_while_the_kernel_holds_a_page_of_it() -> None:
    memory = BlobMemory(2 * PAGE_BYTES)
    memory.write(0, memoryview(content(1, 2 * PAGE_BYTES)))
    reading, writing = os.pipe()
    os.splice(memory.fileno(), writing, PAGE_BYTES, offset_src=0)
    memory.seal()
    with pytest.raises(OSError):
        os.pwrite(memory.fileno(), b"x", 0)
    os.close(reading)
    os.close(writing)


def test_a_wrong_hash_is_refused_and_both_are_named(store: BlobStore) -> None:
    data, announced = pages(1), digest_of(b"something else")
    arrival = store.begin("one", announced, len(data))
    with pytest.raises(ProtocolError, match=f"announced as {announced} arrived as") as raised:
        arrival.take(0, memoryview(data))
    assert digest_of(data) in str(raised.value)
    store.abandon(arrival)
    assert store.statistics().memory_bytes == 0
    assert not store.holds("one", announced) and not store.holds("one", digest_of(data))


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(0, 5), (11, 5), (10, 0), (10, 91)],
    ids=["again", "gap", "empty", "long"],
)
def test_a_piece_out_of_place_is_refused(offset: int, nbytes: int) -> None:
    arrival = Arrival(digest_of(b""), 100)
    arrival.take(0, memoryview(bytes(10)))
    with pytest.raises(ProtocolError, match="do not follow the 10 of 100"):
        arrival.take(offset, memoryview(bytes(nbytes)))


def test_what_was_used_longest_ago_goes_first(store: BlobStore) -> None:
    first, second, third = (put(store, "one", pages(seed, 5)) for seed in range(3))
    assert store.holds("one", first)
    put(store, "one", pages(3, 5))
    assert [store.holds("one", digest) for digest in (first, second, third)] == [True, False, True]
    assert store.statistics().evicted == 1


def test_what_a_session_has_attached_stays(store: BlobStore) -> None:
    kept = put(store, "one", pages(0, 10))
    attachment = store.attach("session", "one", kept)
    other = put(store, "one", pages(1, 4))
    put(store, "one", pages(2, 6))
    assert attachment is not None and store.holds("one", kept) and not store.holds("one", other)
    store.detach("session", kept)
    put(store, "one", pages(3, 12))
    assert not store.holds("one", kept)


def test_a_blob_attached_twice_stays_until_both_have_let_go(store: BlobStore) -> None:
    digest = put(store, "one", pages(0, 10))
    for session in ("first", "second"):
        store.attach(session, "one", digest)
    store.detach("first", digest)
    with pytest.raises(InputError):
        store.begin("one", digest_of(b"x"), 7 * PAGE_BYTES)
    store.detach("second", digest)
    store.abandon(store.begin("one", digest_of(b"x"), 7 * PAGE_BYTES))


def test_a_put_that_cannot_fit_says_what_is_held_by_whom_and_no_contents(store: BlobStore) -> None:
    mine, theirs = put(store, "one", pages(0, 4)), put(store, "secret name", pages(1, 6))
    store.attach("a", "one", mine)
    store.attach("b", "secret name", theirs)
    arriving = store.begin("one", digest_of(b"x"), PAGE_BYTES)
    with pytest.raises(InputError) as raised:
        store.begin("one", digest_of(b"y"), 6 * PAGE_BYTES)
    message = str(raised.value)
    assert f"of {6 * PAGE_BYTES} bytes in a store of {PAGES * PAGE_BYTES}" in message
    assert f"yours have {4 * PAGE_BYTES} bytes attached and {PAGE_BYTES} on their way" in message
    assert f"others {6 * PAGE_BYTES} and 0" in message
    assert mine not in message and theirs not in message and "secret name" not in message
    store.abandon(arriving)


def test_a_blob_over_the_whole_budget_evicts_nothing(store: BlobStore) -> None:
    digest = put(store, "one", pages(0))
    with pytest.raises(InputError, match="no room for a blob"):
        store.begin("one", digest_of(b"x"), PAGES * PAGE_BYTES + 1)
    assert store.holds("one", digest)


def test_an_upload_given_up_frees_its_room(store: BlobStore) -> None:
    arrival = store.begin("one", digest_of(b"x"), PAGES * PAGE_BYTES)
    assert store.statistics().arriving_bytes == PAGES * PAGE_BYTES
    store.abandon(arrival)
    store.abandon(arrival)
    assert store.statistics().memory_bytes == 0
    put(store, "one", pages(1, PAGES))


def test_small_blobs_cost_a_page(store: BlobStore) -> None:
    digests = [put(store, "one", content(seed, 1)) for seed in range(3)]
    assert len(set(digests)) > 1
    assert store.statistics().memory_bytes == PAGE_BYTES * len(set(digests))


def test_blobs_in_memory_are_bounded_by_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (64, 64))
    store = BlobStore(1 << 30)
    digests = [put(store, "one", content(seed, 100)) for seed in range(40)]
    held = [digest for digest in digests if store.holds("one", digest)]
    assert held == digests[-32:]
    store.close()


def test_a_budget_is_at_most_half_of_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.get)
    store = BlobStore(4 << 30)
    with pytest.raises(InputError, match=f"store of {500 * 4096} bytes"):
        store.begin("one", "0" * 64, 4 << 30)
    store.close()


def test_ten_thousand_blobs_leave_no_descriptor_and_no_shared_memory() -> None:
    def traces() -> tuple[int, list[str]]:
        shared = [path.name for path in Path("/dev/shm").glob("*tapml-blob*")]
        return len(list(Path("/proc/self/fd").iterdir())), shared

    store = BlobStore(8 * PAGE_BYTES)
    put(store, "one", content(0, 100))
    # What an earlier test left is not to be collected in between.
    gc.collect()
    before = traces()
    for seed in range(10_000):
        digest = put(store, "one", seed.to_bytes(8, "little") * 600)
        if seed % 3 == 0:
            store.attach(seed, "one", digest)
            store.detach(seed, digest)
        if seed % 5 == 0:
            store.abandon(store.begin("one", digest_of(b"never"), 100))
    # Four blobs of two pages are held.
    assert store.statistics().evicted >= 10_000 - 4
    after = traces()
    assert after[0] <= before[0] + 4 and after[1] == before[1]
    store.close()
    # A thread of an earlier test may have ended meanwhile.
    after = traces()
    assert after[0] <= before[0] - 1 and after[1] == before[1]
