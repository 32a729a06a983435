"""The ``blob`` messages of one session: what is answered, what is refused, what ends with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml_rpc.blobs.memory import PAGE_BYTES
from tapml_rpc.blobs.messages import MAX_ARRIVALS, BlobRequests
from tapml_rpc.blobs.store import BlobStore
from tapml_targets.errors import InputError, ProtocolError, TapmlError
from tests.rpc.blobs.contents import NO_CHUNK, content, digest_of, put, say, say_put

BOUND = 8 * PAGE_BYTES
DATA = content(1, 10_000)
DIGEST = digest_of(DATA)


@pytest.fixture
def store() -> Iterator[BlobStore]:
    kept = BlobStore(64 * PAGE_BYTES)
    yield kept
    kept.close()


@pytest.fixture
def requests(store: BlobStore) -> BlobRequests:
    return BlobRequests(store, "one", BOUND)


def attach(requests: BlobRequests, digest: str) -> Any:
    return requests.handle({"sequence": 1, "operation": "attach", "digest": digest}, NO_CHUNK)


def test_holds_answers_for_each_digest(requests: BlobRequests) -> None:
    assert say_put(requests, DATA)
    assert say(requests, "holds", digests=[digest_of(b""), DIGEST, DIGEST]) == [False, True, True]
    assert say(requests, "holds", digests=[]) == []


def test_a_put_is_answered_piece_by_piece_and_true_at_last(requests: BlobRequests) -> None:
    fields = {"digest": DIGEST, "total": len(DATA)}
    assert say(requests, "put", DATA[:6000], offset=0, **fields) is False
    assert say(requests, "holds", digests=[DIGEST]) == [False]
    assert say(requests, "put", DATA[6000:], offset=6000, **fields) is True
    assert say(requests, "holds", digests=[DIGEST]) == [True]


def test_attach_gives_the_worker_a_descriptor_once(requests: BlobRequests) -> None:
    say_put(requests, DATA)
    reply, attachment = attach(requests, DIGEST)
    assert reply == {"type": "blob-done", "sequence": 1, "value": True}
    digest, descriptor, nbytes = attachment
    assert (digest, nbytes) == (DIGEST, len(DATA))
    assert os.pread(descriptor, nbytes, 0) == DATA
    assert attach(requests, DIGEST) == (reply, None)


def test_attach_of_what_is_not_held_says_so(requests: BlobRequests) -> None:
    reply, attachment = attach(requests, DIGEST)
    assert (reply["value"], attachment) == (False, None)


def test_detach_tells_the_worker_and_frees_the_room(
    requests: BlobRequests, store: BlobStore
) -> None:
    say_put(requests, DATA)
    attach(requests, DIGEST)
    detach = {"sequence": 2, "operation": "detach", "digest": DIGEST}
    assert requests.handle(detach, NO_CHUNK) == (
        {"type": "blob-done", "sequence": 2, "value": True},
        (DIGEST, -1, 0),
    )
    assert store.statistics().attached_bytes == 0
    assert requests.handle(detach, NO_CHUNK)[1] is None


def test_another_identity_gets_false_until_it_has_sent_the_bytes(
    requests: BlobRequests, store: BlobStore
) -> None:
    say_put(requests, DATA)
    other = BlobRequests(store, "other", BOUND)
    assert say(other, "holds", digests=[DIGEST]) == [False]
    assert say(other, "attach", digest=DIGEST) is False
    # Knowing the hash and the beginning is not knowing the bytes.
    fields = {"digest": DIGEST, "total": len(DATA)}
    say(other, "put", DATA[:9000], offset=0, **fields)
    with pytest.raises(ProtocolError, match="arrived as"):
        say(other, "put", bytes(1000), offset=9000, **fields)
    assert say(other, "attach", digest=DIGEST) is False
    assert say_put(other, DATA)
    assert say(other, "attach", digest=DIGEST) is True


def test_two_sessions_may_send_the_same_blob_at_once(
    requests: BlobRequests, store: BlobStore
) -> None:
    second = BlobRequests(store, "one", BOUND)
    fields = {"digest": DIGEST, "total": len(DATA)}
    for each in (requests, second):
        assert say(each, "put", DATA[:5000], offset=0, **fields) is False
    for each in (requests, second):
        assert say(each, "put", DATA[5000:], offset=5000, **fields) is True
    assert store.statistics().memory_bytes == 3 * PAGE_BYTES


def test_a_session_that_ends_takes_its_uploads_and_attachments_along(
    requests: BlobRequests, store: BlobStore
) -> None:
    say_put(requests, DATA)
    attach(requests, DIGEST)
    say(requests, "put", b"x", digest=digest_of(b"xy"), total=2, offset=0)
    found = store.statistics()
    assert found.arriving_bytes and found.attached_bytes
    requests.close()
    found = store.statistics()
    assert not found.arriving_bytes and not found.attached_bytes
    assert store.holds("one", DIGEST)


def test_unfinished_uploads_are_bounded_in_count(requests: BlobRequests) -> None:
    for number in range(MAX_ARRIVALS):
        say(requests, "put", b"x", digest=digest_of(bytes([number])), total=2, offset=0)
    with pytest.raises(ProtocolError, match="more than 4 blobs are on their way"):
        say(requests, "put", b"x", digest=DIGEST, total=2, offset=0)
    # One that begins again is not one more.
    say(requests, "put", b"x", digest=digest_of(bytes([0])), total=2, offset=0)


def test_unfinished_uploads_are_bounded_in_bytes(requests: BlobRequests) -> None:
    say(requests, "put", b"x", digest=digest_of(b"1"), total=BOUND - PAGE_BYTES, offset=0)
    with pytest.raises(InputError, match=f"a session may have {BOUND}"):
        say(requests, "put", b"x", digest=digest_of(b"2"), total=PAGE_BYTES + 1, offset=0)
    say(requests, "put", b"x", digest=digest_of(b"2"), total=PAGE_BYTES, offset=0)


def test_what_a_session_has_attached_is_bounded(requests: BlobRequests, store: BlobStore) -> None:
    first, second = (put(store, "one", content(seed, BOUND - PAGE_BYTES)) for seed in range(2))
    attach(requests, first)
    with pytest.raises(InputError, match=f"its bound is {BOUND}"):
        attach(requests, second)
    assert store.statistics().attached_bytes == BOUND - PAGE_BYTES
    say(requests, "detach", digest=first)
    assert attach(requests, second)[0]["value"] is True


def test_what_is_on_its_way_counts_beside_what_is_attached(
    requests: BlobRequests, store: BlobStore
) -> None:
    attach(requests, put(store, "one", content(1, BOUND - PAGE_BYTES)))
    with pytest.raises(InputError, match=f"a session may have {BOUND}"):
        say(requests, "put", b"x", digest=DIGEST, total=PAGE_BYTES + 1, offset=0)


def test_after_a_piece_out_of_place_a_blob_begins_again(
    requests: BlobRequests, store: BlobStore
) -> None:
    fields = {"digest": DIGEST, "total": len(DATA)}
    say(requests, "put", DATA[:6000], offset=0, **fields)
    with pytest.raises(ProtocolError, match="do not follow"):
        say(requests, "put", DATA[7000:], offset=7000, **fields)
    with pytest.raises(ProtocolError, match="not on its way"):
        say(requests, "put", DATA[6000:], offset=6000, **fields)
    assert store.statistics().arriving_bytes == 0
    assert say_put(requests, DATA)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"operation": "holds"}, "digests must be an array"),
        ({"operation": "holds", "digests": [7]}, "digest must be a string"),
        ({"operation": "holds", "digests": ["../../etc/passwd"]}, "64 digits"),
        ({"operation": "attach", "digest": DIGEST.upper()}, "64 digits"),
        ({"operation": "attach", "digest": DIGEST + "\n"}, "digest must be a string"),
        ({"operation": "attach"}, "digest must be a string"),
        ({"operation": "put", "digest": DIGEST, "offset": 0}, "blob size must be an integer"),
        ({"operation": "put", "digest": DIGEST, "total": 9}, "offset must be an integer"),
        ({"operation": "put", "digest": DIGEST, "total": 0, "offset": 0}, "at least one byte"),
        ({"operation": "put", "digest": DIGEST, "total": 9, "offset": 0}, "do not follow"),
        ({"operation": "steal", "digest": DIGEST}, "known: holds, put, attach, detach"),
        ({"operation": 7}, "operation must be a string"),
        ({}, "operation must be a string"),
        ({"operation": "holds", "digests": [], "sequence": -1}, "sequence must be an integer"),
    ],
)
def test_a_malformed_message_is_refused_with_its_fault(
    requests: BlobRequests, store: BlobStore, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        requests.handle({"sequence": 1, **fields}, NO_CHUNK)
    assert store.statistics().memory_bytes == 0


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=70) | st.binary(max_size=70),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.fixed_dictionaries(
                {"sequence": ANYTHING | st.just(1)},
                optional={
                    "operation": st.sampled_from(["holds", "put", "attach", "detach"]) | ANYTHING,
                    "digest": st.sampled_from([DIGEST, digest_of(b"a")]) | ANYTHING,
                    "digests": st.lists(st.just(DIGEST)) | ANYTHING,
                    "total": st.sampled_from([1, 2, 10_000, 1 << 62]) | ANYTHING,
                    "offset": st.sampled_from([0, 1, 5000]) | ANYTHING,
                },
            ),
            st.sampled_from([b"", b"a", DATA[:5000], DATA[5000:], DATA]),
        ),
        max_size=8,
    )
)
def test_nothing_a_client_says_raises_anything_but_our_errors(
    messages: list[tuple[dict[str, Any], bytes]],
) -> None:
    store = BlobStore(16 * PAGE_BYTES)
    requests = BlobRequests(store, "one", BOUND)
    for header, chunk in messages:
        with suppress(TapmlError):
            requests.handle(header, memoryview(chunk))
    requests.close()
    found = store.statistics()
    assert (found.arriving_bytes, found.attached_bytes) == (0, 0)
    store.close()


def test_a_blob_that_is_only_on_disk_is_read_and_attached(tmp_path: Path) -> None:
    data = content(1, 5 << 20)
    first = BlobStore(1 << 24, 1 << 24, tmp_path)
    digest = put(first, "one", data)
    first.close()
    second = BlobStore(1 << 24, 1 << 24, tmp_path)
    requests = BlobRequests(second, "one", 1 << 24)
    assert say(requests, "holds", digests=[digest]) == [True]
    reply, attachment = attach(requests, digest)
    assert reply == {"type": "blob-done", "sequence": 1, "value": True}
    assert attachment is not None and os.pread(attachment.fd, len(data), 0) == data
    second.close()
