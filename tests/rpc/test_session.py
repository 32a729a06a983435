"""A session's commands on a real device."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from tapml_rpc.client import RemoteTensor, Session
from tapml_rpc.link import Link
from tapml_targets.errors import CompileError, InputError, ProtocolError
from tests.rpc.libraries import add_one_library, call_and_report

COUNT = 1000


def tensor_of(session: Session, values: np.ndarray) -> RemoteTensor:
    buffer = session.allocate(values.nbytes)
    session.write(buffer, values)
    return RemoteTensor(buffer, 0, values.shape, str(values.dtype))


def read_floats(session: Session, tensor: RemoteTensor) -> np.ndarray:
    data = session.read(tensor.buffer, tensor.nbytes, tensor.byte_offset)
    return np.frombuffer(data, np.float32)


def test_a_batch_that_cannot_be_sent_says_so_where_its_results_are_read(session: Session) -> None:
    with pytest.raises(ProtocolError, match=r"header|pattern"), session.batch() as batch:
        buffer = batch.allocate(16)
        session._queue.add(["fill", buffer.handle, 0, 4, bytes(2 << 20)])
        pending = batch.read(buffer)
    with pytest.raises(ProtocolError, match=r"header|pattern"):
        pending.result()


def test_calls_with_long_options_fit_into_batches(session: Session) -> None:
    library = session.upload(add_one_library())
    source, target = (tensor_of(session, np.ones(8, np.float32)) for _ in range(2))
    with session.batch() as batch:
        calls = [
            batch.call(library, "add_two", [source, target], workspace_poison=bytes(4096))
            for _ in range(512)
        ]
    assert [call.result().damaged_guards for call in calls] == [()] * 512


def test_what_is_written_is_read_back(session: Session) -> None:
    buffer = session.allocate(16)
    session.write(buffer, bytes(range(16)))
    session.write(buffer, b"\xff\xfe", byte_offset=7)
    assert bytes(session.read(buffer, 16)) == bytes(range(7)) + b"\xff\xfe" + bytes(range(9, 16))
    assert bytes(session.read(buffer, 2, 7)) == b"\xff\xfe"


def test_written_data_may_be_changed_at_once(session: Session) -> None:
    for size in (64, 3 << 20):
        data = bytearray(size)
        buffer = session.allocate(size)
        session.write(buffer, data)
        data[:] = b"\xff" * size
        assert not any(session.read(buffer, size))


def test_payloads_of_every_size_arrive_whole(session: Session) -> None:
    edges = (0, 1, 7, 8, 9, 256 << 10, (256 << 10) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 3)
    for size in (*edges, (24 << 20) + 5):
        data = np.random.default_rng(size).bytes(size)
        buffer = session.allocate(size)
        session.write(buffer, data)
        assert bytes(session.read(buffer, size)) == data, size
        session.free(buffer)


def test_a_fill_repeats_its_pattern_and_cuts_the_last_one(session: Session) -> None:
    buffer = session.allocate(11)
    session.fill(buffer, b"\0")
    session.fill(buffer, b"abcd", 7, byte_offset=2)
    assert bytes(session.read(buffer)) == b"\0\0abcdabc\0\0"


def test_a_copy_stays_on_the_device(session: Session) -> None:
    source, target = session.allocate(8), session.allocate(8)
    session.write(source, b"abcdefgh")
    session.fill(target, b".")
    session.copy(source, target, 3, source_offset=2, target_offset=4)
    assert bytes(session.read(target)) == b"....cde."


def test_an_operator_writes_its_output_in_place(session: Session) -> None:
    library = session.upload(add_one_library())
    x = np.arange(COUNT, dtype=np.float32)
    source, target = tensor_of(session, x), tensor_of(session, np.zeros_like(x))
    session.call(library, "add_one", [source, target])
    np.testing.assert_array_equal(read_floats(session, target), x + 1)


def test_an_entry_runs_a_sequence_of_operators_in_one_call(session: Session) -> None:
    library = session.upload(add_one_library())
    x = np.arange(COUNT, dtype=np.float32)
    source, target = tensor_of(session, x), tensor_of(session, np.zeros_like(x))
    session.call(library, "add_two", [source, target])
    np.testing.assert_array_equal(read_floats(session, target), x + 2)


def test_a_tensor_may_be_a_window_on_a_buffer(session: Session) -> None:
    library = session.upload(add_one_library())
    buffer = session.allocate(4096)
    session.fill(buffer, b"\0")
    session.write(buffer, np.full(8, 5, np.float32), byte_offset=1024)
    source = RemoteTensor(buffer, 1024, (8,), "float32")
    target = RemoteTensor(buffer, 2048, (8,), "float32")
    session.call(library, "add_one", [source, target])
    whole = np.frombuffer(session.read(buffer), np.float32)
    np.testing.assert_array_equal(whole[512:520], np.full(8, 6, np.float32))
    assert not whole[520:].any()


def messages_sent(session: Session) -> int:
    """How many messages the session has sent."""
    link: Any = session._link
    return int(link._unanswered.sequence if isinstance(link, Link) else link._sequence)


def test_a_whole_operator_test_is_one_message(session: Session) -> None:
    library = session.upload(add_one_library())
    session.fence()
    x = np.arange(COUNT, dtype=np.float32)
    before = messages_sent(session)
    with session.batch() as batch:
        source, target = batch.allocate(x.nbytes), batch.allocate(x.nbytes)
        batch.write(source, x)
        batch.fill(target, b"\xff")
        tensors = [RemoteTensor(buffer, 0, x.shape, "float32") for buffer in (source, target)]
        report = batch.call(library, "add_one", tensors, timed=True)
        output = batch.read(target)
        batch.free(source)
        batch.free(target)
    assert messages_sent(session) == before + 1
    np.testing.assert_array_equal(np.frombuffer(output.result(), np.float32), x + 1)
    nanoseconds = report.result().kernel_nanoseconds
    assert nanoseconds is not None and 0 < nanoseconds < 10**9


def test_reads_of_a_session_inside_a_batch_come_with_the_answer(session: Session) -> None:
    buffer = session.allocate(4)
    with session.batch():
        session.write(buffer, b"abcd")
        early = session.read(buffer)
        session.write(buffer, b"efgh")
        late = session.read(buffer, 2, 1)
        with pytest.raises(InputError, match="when its batch ends"):
            early.result()
    assert bytes(early.result()) == b"abcd"
    assert bytes(late.result()) == b"fg"


def test_a_batch_may_be_larger_than_a_message(session: Session) -> None:
    payloads = [np.random.default_rng(i).bytes(700 << 10) for i in range(12)]
    with session.batch() as batch:
        buffers = [batch.allocate(len(data)) for data in payloads]
        for buffer, data in zip(buffers, payloads, strict=True):
            batch.write(buffer, data)
        reads = [batch.read(buffer) for buffer in buffers]
    assert [bytes(read.result()) for read in reads] == payloads


def test_a_batch_left_by_an_error_sends_nothing(session: Session) -> None:
    buffer = session.allocate(4)
    session.write(buffer, b"abcd")
    session.fence()
    with pytest.raises(ValueError, match="given up"), session.batch() as batch:
        batch.write(buffer, b"....")
        read = batch.read(buffer)
        raise ValueError("given up")
    assert bytes(session.read(buffer)) == b"abcd"
    with pytest.raises(InputError, match="given up before it was sent"):
        read.result()


def test_a_batch_left_by_an_error_keeps_handles_and_what_came_before(session: Session) -> None:
    before = session.allocate(4)
    session.write(before, b"abcd")
    with pytest.raises(ValueError, match="given up"), session.batch() as batch:
        batch.write(before, b"....")
        inside = batch.allocate(4)
        batch.write(inside, b"....")
        raise ValueError("given up")
    assert bytes(session.read(before)) == b"abcd"
    session.write(inside, b"efgh")
    assert bytes(session.read(inside)) == b"efgh"


def test_waiting_inside_a_batch_is_refused(session: Session) -> None:
    with session.batch(), pytest.raises(InputError, match="cannot run inside a batch"):
        session.fence()


def test_streamed_calls_run_in_order_without_an_answer_in_between(session: Session) -> None:
    library = session.upload(add_one_library())
    a, b = (tensor_of(session, np.zeros(64, np.float32)) for _ in range(2))
    for _ in range(500):
        session.call(library, "add_one", [a, b])
        session.call(library, "add_one", [b, a])
    np.testing.assert_array_equal(read_floats(session, a), np.full(64, 1000, np.float32))


def test_poisoned_workspaces_are_reported_whole(session: Session) -> None:
    library = session.upload(add_one_library())
    source, target = (tensor_of(session, np.zeros(64, np.float32)) for _ in range(2))
    report = call_and_report(
        session, library, "add_two", [source, target], workspace_poison=b"\x7f\xc0\0\0"
    )
    assert report.damaged_guards == ()
    assert report.kernel_nanoseconds
    assert read_floats(session, target).tolist() == [2.0] * 64


def test_a_wrong_shape_is_named_and_does_not_reach_the_kernel(session: Session) -> None:
    library = session.upload(add_one_library())
    source = tensor_of(session, np.zeros(64, np.float32))
    target = tensor_of(session, np.zeros(32, np.float32))
    session.call(library, "add_one", [source, target])
    with pytest.raises(InputError, match=r"expected shape .*, got \(32,\)") as caught:
        session.fence()
    assert "call_plan" in caught.value.remote_traceback  # type: ignore[attr-defined]
    assert "add_one" in caught.value.command  # type: ignore[attr-defined]


def test_an_unknown_operator_is_refused_with_the_known_ones(session: Session) -> None:
    library = session.upload(add_one_library())
    with pytest.raises(InputError, match="no operator or entry 'sub'; it has add_two, add_one"):
        session.call(library, "sub", [])


def test_a_kernel_that_does_not_build_raises_at_once_and_poisons_nothing(session: Session) -> None:
    with pytest.raises(CompileError, match="undeclared"):
        session.upload(add_one_library(b"__kernel void add_one() { nothing; }"))
    session.fence()
    assert session.upload(add_one_library()).operators == ("add_one",)


@pytest.mark.parametrize("offset, nbytes", [(0, 17), (16, 1), (-1, 4), (3, -1)])
def test_windows_outside_a_buffer_are_refused(session: Session, offset: int, nbytes: int) -> None:
    buffer = session.allocate(16)
    with pytest.raises(InputError, match="outside a buffer of 16 bytes"):
        session.read(buffer, nbytes, offset)


def test_a_freed_buffer_cannot_be_used(session: Session) -> None:
    buffer = session.allocate(16)
    session.free(buffer)
    session.free(buffer)
    with pytest.raises(InputError, match="was freed"):
        session.read(buffer)


def test_a_buffer_nobody_refers_to_is_freed(session: Session) -> None:
    gc.collect()
    session.fence()
    handle = session.allocate(16).handle
    assert handle in [dropped for dropped, _ in session._dropped]
    session.fence()
    assert not session._dropped
    session._add(["read", handle, 0, 16])
    with pytest.raises(InputError, match=f"no buffer has the handle {handle}"):
        session.fence()


def test_data_that_is_no_contiguous_memory_is_refused(session: Session) -> None:
    buffer = session.allocate(64)
    with pytest.raises(InputError, match="contiguous"):
        session.write(buffer, np.zeros((4, 4), np.float32)[:, ::2])
    with pytest.raises(InputError, match="expected bytes"):
        session.write(buffer, "text")


def test_threads_share_a_session(session: Session) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(30):
            with session.batch() as batch:
                buffer = batch.allocate(256)
                batch.fill(buffer, bytes([number]))
                read = batch.read(buffer)
            if bytes(read.result()) != bytes([number]) * 256:
                wrong.append(f"thread {number} read another's bytes")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
