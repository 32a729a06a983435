"""Weights and Libraries that travel by hash: a session on a real device, and a blob store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tapml_rpc.blobs.messages import BlobRequests
from tapml_rpc.blobs.store import BlobStore
from tapml_rpc.remote import RemoteTensor
from tapml_rpc.session import Session
from tapml_rpc.transport import Pending
from tapml_rpc.uploads import SMALL_BYTES, BlobWrite, load_library
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import CompileError, InputError, ProtocolError
from tapml_targets.library_format import library_hash, pack
from tests.conftest import RequireDevice
from tests.rpc.blobs.contents import NO_CHUNK, content, digest_of, put
from tests.rpc.blobs.joined import JoinedTransport, open_joined, write_blob
from tests.rpc.libraries import add_one_library

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def device(require_device: RequireDevice) -> DeviceDescription:
    return require_device("opencl")[0]


@pytest.fixture
def store() -> Iterator[BlobStore]:
    kept = BlobStore(64 * MEBIBYTE)
    yield kept
    kept.close()


def written(session: Session, *datas: bytes) -> list[bytes]:
    """What lies on the device once `datas` were written as blobs."""
    buffers = [session.allocate(len(data)) for data in datas]
    session.write_blobs(
        BlobWrite(buffer, data) for buffer, data in zip(buffers, datas, strict=True)
    )
    return [bytes(session.read(buffer)) for buffer in buffers]


def test_a_second_session_on_the_same_weights_sends_none_of_them(
    device: DeviceDescription, store: BlobStore
) -> None:
    weights = [content(seed, 3 * MEBIBYTE + seed) for seed in range(5)]
    first, sent_first = open_joined(device, store)
    with first:
        assert written(first, *weights) == weights
    second, sent_second = open_joined(device, store)
    with second:
        assert written(second, *weights) == weights
    assert sent_first.chunk_bytes == sum(map(len, weights))
    assert sent_second.chunk_bytes == 0
    assert store.statistics().attached_bytes == 0


def test_all_weights_are_asked_for_at_once(device: DeviceDescription, store: BlobStore) -> None:
    session, transport = open_joined(device, store)
    with session:
        weights = [content(seed, SMALL_BYTES) for seed in range(40)]
        assert written(session, *weights) == weights
        assert transport.operations.count("holds") == 1


def test_what_is_pasted_is_not_kept_attached(device: DeviceDescription, store: BlobStore) -> None:
    session, transport = open_joined(device, store)
    with session:
        weights = [content(seed, SMALL_BYTES) for seed in range(40)]
        written(session, *weights)
        assert len(transport.blobs) == 0
        assert store.statistics().attached_bytes == 0


def test_equal_weights_are_sent_once(device: DeviceDescription, store: BlobStore) -> None:
    session, transport = open_joined(device, store)
    with session:
        tied = content(1, MEBIBYTE)
        assert written(session, tied, tied) == [tied, tied]
        assert transport.chunk_bytes == MEBIBYTE


def test_a_window_of_a_buffer_is_written_and_nothing_else(
    device: DeviceDescription, store: BlobStore
) -> None:
    session, _ = open_joined(device, store)
    with session:
        buffer = session.allocate(MEBIBYTE)
        session.fill(buffer, b"\x07")
        data = content(1, SMALL_BYTES + 3)
        assert write_blob(session, buffer, data, 13) == len(data)
        found = bytes(session.read(buffer))
        assert found[13 : 13 + len(data)] == data
        assert set(found[:13]) | set(found[13 + len(data) :]) == {7}
        with pytest.raises(InputError, match="lie outside a buffer"):
            write_blob(session, buffer, data, MEBIBYTE)


def test_small_data_takes_the_plain_way(device: DeviceDescription, store: BlobStore) -> None:
    session, transport = open_joined(device, store)
    with session:
        small = content(1, SMALL_BYTES - 1)
        assert written(session, small) == [small]
        assert transport.operations == []


def test_a_blob_written_inside_a_batch_is_a_plain_write(
    device: DeviceDescription, store: BlobStore
) -> None:
    session, transport = open_joined(device, store)
    with session:
        data = content(1, MEBIBYTE)
        buffer = session.allocate(MEBIBYTE)
        with session.batch() as batch:
            write_blob(session, buffer, data)
            pending = batch.read(buffer)
        assert bytes(pending.result()) == data
        assert transport.operations == []


def test_a_server_without_blobs_is_written_to_plainly(
    device: DeviceDescription, store: BlobStore
) -> None:
    session, transport = open_joined(device, store)
    transport.features = transport.features - {"blobs"}
    with session:
        data = content(1, MEBIBYTE)
        assert written(session, data) == [data]
        assert transport.operations == []


def test_a_weight_the_store_has_no_room_for_is_written_plainly(device: DeviceDescription) -> None:
    store = BlobStore(MEBIBYTE)
    session, _ = open_joined(device, store)
    with session:
        large, fits = content(1, 2 * MEBIBYTE), content(2, MEBIBYTE // 2)
        assert written(session, large, fits) == [large, fits]
        assert store.holds("somebody", digest_of(fits))
    store.close()


def test_more_weights_than_memory_all_arrive(device: DeviceDescription) -> None:
    store = BlobStore(4 * MEBIBYTE)
    weights = [content(seed, MEBIBYTE) for seed in range(12)]
    for _ in range(2):
        session, _ = open_joined(device, store)
        with session:
            assert written(session, *weights) == weights
    assert store.statistics().memory_bytes <= 4 * MEBIBYTE
    store.close()


def test_a_weight_that_was_evicted_meanwhile_is_written_plainly(
    device: DeviceDescription, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = content(1, MEBIBYTE)
    first, _ = open_joined(device, store)
    with first:
        written(first, data)
    second, transport = open_joined(device, store)
    with second:
        monkeypatch.setattr(store, "attach", lambda *_: None)
        assert written(second, data) == [data]
        assert transport.chunk_bytes == len(data)


def test_a_digest_that_is_known_is_not_computed(
    device: DeviceDescription, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = content(1, MEBIBYTE)
    digest = digest_of(data)
    session, _ = open_joined(device, store)
    with session:
        buffer = session.allocate(MEBIBYTE)
        assert write_blob(session, buffer, data, digest=digest) == MEBIBYTE
        monkeypatch.setattr("tapml_rpc.uploads.hashlib", None)
        assert write_blob(session, buffer, data, digest=digest) == 0
        assert bytes(session.read(buffer)) == data


def test_a_wrong_digest_is_refused_by_name_and_costs_no_session(
    device: DeviceDescription, store: BlobStore
) -> None:
    session, _ = open_joined(device, store)
    with session:
        data, other = content(1, MEBIBYTE), digest_of(b"other")
        buffer = session.allocate(MEBIBYTE)
        with pytest.raises(ProtocolError, match=f"{other} arrived as {digest_of(data)}"):
            write_blob(session, buffer, data, digest=other)
        write_blob(session, buffer, data)
        assert bytes(session.read(buffer)) == data
        assert store.statistics().blobs == 1


def test_another_identity_sends_what_is_held_already(
    device: DeviceDescription, store: BlobStore
) -> None:
    data = content(1, MEBIBYTE)
    sent = []
    for identity in ("one", "other", "one", "other"):
        session, transport = open_joined(device, store, identity)
        with session:
            assert written(session, data) == [data]
        sent.append(transport.chunk_bytes)
    assert sent == [MEBIBYTE, MEBIBYTE, 0, 0]
    assert store.statistics().memory_bytes == MEBIBYTE


def run_add_one(session: Session, comment: str) -> list[float]:
    library = session.upload(add_one_library(comment=comment))
    values = np.arange(8, dtype=np.float32)
    x, y = session.allocate(32), session.allocate(32)
    session.write(x, values)
    tensors = [RemoteTensor(buffer, 0, (8,), "float32") for buffer in (x, y)]
    session.call(library, "add_one", tensors)
    return list(np.frombuffer(session.read(y), np.float32))


def test_a_library_travels_once_and_is_not_kept_attached(
    device: DeviceDescription, store: BlobStore
) -> None:
    sent: list[JoinedTransport] = []
    for _ in range(2):
        session, transport = open_joined(device, store)
        with session:
            assert run_add_one(session, "x" * 5000) == [1, 2, 3, 4, 5, 6, 7, 8]
            assert len(transport.blobs) == 0
        sent.append(transport)
    # The eight values of the second session, and nothing else.
    assert sent[0].chunk_bytes - sent[1].chunk_bytes > 5000
    assert sent[1].chunk_bytes == 32
    assert sent[1].operations == ["attach", "detach"]


def test_a_library_that_does_not_build_says_so_and_is_let_go(
    device: DeviceDescription, store: BlobStore
) -> None:
    session, transport = open_joined(device, store)
    with session:
        with pytest.raises(CompileError):
            session.upload(add_one_library(b"this is no OpenCL"))
        assert len(transport.blobs) == 0
        assert run_add_one(session, "")[0] == 1


def test_a_library_that_the_store_has_no_room_for_is_refused_and_nothing_else(
    device: DeviceDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(4096)
    session, _ = open_joined(device, store)
    monkeypatch.setattr("tapml_rpc.uploads._ROOM_SECONDS", (0.01,))
    with session:
        with pytest.raises(InputError, match=r"no room for a blob .* more --blob-bytes"):
            session.upload(add_one_library(comment="x" * 5000))
        session.fence()
    store.close()


def test_a_library_waits_a_moment_for_the_room_of_others(
    device: DeviceDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(MEBIBYTE)
    session, _ = open_joined(device, store)
    held = BlobRequests(store, "other", MEBIBYTE)
    digest = put(store, "other", content(1, MEBIBYTE))
    held.handle({"sequence": 1, "operation": "attach", "digest": digest}, NO_CHUNK)
    waits: list[float] = []
    uploading, really_sleep = threading.get_ident(), time.sleep

    def pause(seconds: float) -> None:
        if threading.get_ident() != uploading:
            # The clock is everybody's, and earlier tests may have left threads that wait.
            return really_sleep(seconds)
        waits.append(seconds)
        if seconds:
            held.close()

    monkeypatch.setattr("tapml_rpc.uploads.time.sleep", pause)
    with session:
        assert session.upload(add_one_library()).operators == ("add_one",)
    assert len(waits) == 2
    store.close()


def test_why_a_library_is_not_attached_is_said_and_one_that_is_built_loads_without(
    device: DeviceDescription, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = open_joined(device, store)
    monkeypatch.setattr("tapml_rpc.uploads._ROOM_SECONDS", ())

    def full(*_: object) -> None:
        raise InputError("no room for a blob")

    packed = pack(add_one_library())
    with session:
        session.unload(session.upload(packed))
        session.fence()
        # As if it were on disk alone, and the memory full of others' attachments.
        monkeypatch.setattr(store, "attach", full)
        assert session.upload(packed).operators == ("add_one",)
        with pytest.raises(InputError, match="no room for a blob"):
            session.upload(add_one_library(comment="another"))


def test_a_weight_cannot_be_loaded_as_a_library(
    device: DeviceDescription, store: BlobStore
) -> None:
    session, transport = open_joined(device, store)
    with session:
        data = content(1, MEBIBYTE)
        assert write_blob(session, session.allocate(MEBIBYTE), data) == MEBIBYTE
        attach = {"type": "blob", "operation": "attach", "digest": digest_of(data)}
        assert transport.request(attach).value is True
        with pytest.raises(ProtocolError):
            load_library(transport, 99, digest_of(data), data)


def test_the_library_of_another_identity_is_not_found(
    device: DeviceDescription, store: BlobStore
) -> None:
    packed = pack(add_one_library())
    one, _ = open_joined(device, store, "one")
    with one:
        one.upload(packed)
    other, transport = open_joined(device, store, "other")
    with other:
        digest = library_hash(packed)
        attach = {"type": "blob", "operation": "attach", "digest": digest}
        assert transport.request(attach).value is False
        loaded: Pending[dict[str, str]] = Pending()
        transport.send([["load", 1, digest]], b"", {0: loaded})
        assert (loaded.result()["kind"], "not attached" in loaded.result()["message"]) == (
            "InputError",
            True,
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([101, 0, "0" * 64, 0, 8], "is not attached"),
        ([101, 0, "digest", MEBIBYTE, 1], "lie outside blob"),
        ([101, MEBIBYTE, "digest", 0, 1], "lie outside buffer"),
        ([107, 0, "digest", 0, 1], "no buffer has the handle"),
        ([101, 0, "digest", -1, 1], "blob offset must be an integer"),
        ([101, 0, "digest", 0], "wrong number of fields"),
    ],
)
def test_a_paste_that_names_what_is_not_there_is_refused(
    device: DeviceDescription, store: BlobStore, fields: list[object], message: str
) -> None:
    session, transport = open_joined(device, store)
    with session:
        data = content(1, MEBIBYTE)
        digest = digest_of(data)
        write_blob(session, session.allocate(MEBIBYTE), data)
        transport.request({"type": "blob", "operation": "attach", "digest": digest})
        named = [digest if field == "digest" else field for field in fields]
        ticket = transport.send([["allocate", 101, MEBIBYTE], ["paste", *named]], b"")
        assert message in str(ticket.failure)
