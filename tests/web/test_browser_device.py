"""A browser as a device: operators run there, and what goes wrong is reported in full."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tapml_rpc.remote import RemoteTensor
from tapml_rpc.session import Session
from tapml_targets.errors import CompileError, InputError, LimitExceededError
from tapml_targets.library import Library
from tests.rpc.libraries import call_and_report
from tests.targets.libraries import edited, slow_library, slow_result
from tests.targets.libraries import library as small_library
from tests.web.pages import DevicePage

VALUES = np.arange(1000, dtype=np.float32)
LIBRARY = small_library("webgpu")


def tensor(session: Session, values: np.ndarray, byte_offset: int = 0) -> RemoteTensor:
    buffer = session.allocate(byte_offset + values.nbytes)
    session.write(buffer, values, byte_offset)
    return RemoteTensor(buffer, byte_offset, values.shape, str(values.dtype))


def read(session: Session, given: RemoteTensor) -> np.ndarray:
    data = session.read(given.buffer, given.nbytes, given.byte_offset)
    return np.frombuffer(data, np.float32)


def with_dialect(of: Library, dialect: str) -> Library:
    """The same Library with its text called something else."""
    return replace(of, modules=tuple(replace(each, dialect=dialect) for each in of.modules))


def test_an_operator_and_an_entry_run_in_the_browser(session: Session) -> None:
    assert session.device.platform == "webgpu"
    assert session.device.limits.offset_alignment in (32, 256)
    uploaded = session.upload(LIBRARY)
    a, o = tensor(session, VALUES), tensor(session, 0 * VALUES)
    for name, expected in (
        ("add_one", VALUES + 1),
        ("double_add", 2 * VALUES + 1),
        ("chain", 2 * VALUES + 2),
        # All intermediates in one storage: a kernel reads and writes one buffer.
        ("shared", VALUES + 3),
    ):
        session.call(uploaded, name, [a, o])
        np.testing.assert_array_equal(read(session, o), expected)


def test_a_read_waits_for_the_work_before_it(session: Session) -> None:
    """A paper's porter read zeros: the work had been submitted and was not done."""
    library = session.upload(slow_library("webgpu"))
    expected = slow_result(4096)
    o = tensor(session, 0 * expected)
    session.call(library, "slow", [o])
    found = np.frombuffer(session.read(o.buffer, o.nbytes), np.uint32)
    np.testing.assert_array_equal(found, expected)


def test_tensors_may_begin_anywhere_and_share_a_buffer(session: Session) -> None:
    library = session.upload(LIBRARY)
    buffer = session.allocate(3 * VALUES.nbytes)
    for target, source in ((4, VALUES.nbytes + 8), (0, VALUES.nbytes), (0, 1024), (12, 12)):
        session.write(buffer, VALUES, source)
        a = RemoteTensor(buffer, source, VALUES.shape, "float32")
        o = RemoteTensor(buffer, target, VALUES.shape, "float32")
        session.call(library, "add_one", [a, o])
        np.testing.assert_array_equal(read(session, o), VALUES + 1)


def test_a_grid_beyond_what_a_dimension_holds_is_folded(session: Session) -> None:
    count = 64 * 65535 + 100
    values = np.arange(count, dtype=np.float32)
    a, o = tensor(session, values), tensor(session, 0 * values)
    session.call(session.upload(LIBRARY), "add_one", [a, o])
    np.testing.assert_array_equal(read(session, o), values + 1)


def test_bytes_are_written_filled_copied_and_read_at_any_place(session: Session) -> None:
    generator = np.random.default_rng(7)
    sizes = (1027, 2048)
    buffers = [session.allocate(size) for size in sizes]
    expected = [generator.bytes(size) for size in sizes]
    for buffer, data in zip(buffers, expected, strict=True):
        session.write(buffer, data)
    here, there = map(bytearray, expected)
    for _ in range(40):
        length, start, at = map(int, generator.integers((1, 0, 0), (200, 800, 800)))
        data = generator.bytes(length)
        session.write(buffers[0], data, start)
        here[start : start + length] = data
        session.copy(buffers[0], buffers[1], length, start, at)
        there[at : at + length] = here[start : start + length]
        session.fill(buffers[1], b"abc", length, at + 900)
        there[at + 900 : at + 900 + length] = (b"abc" * 100)[:length]
        part = session.read(buffers[1], length, at)
        assert bytes(part) == there[at : at + length]
    assert bytes(session.read(buffers[0])) == here
    assert bytes(session.read(buffers[1])) == there


def test_a_long_tensor_goes_there_and_back_in_pieces(session: Session) -> None:
    data = np.random.default_rng(3).bytes((9 << 20) + 3)
    buffer = session.allocate(len(data))
    session.write(buffer, data)
    assert bytes(session.read(buffer)) == data


def test_programs_run_by_name(session: Session) -> None:
    library = session.upload(LIBRARY)
    a, o = tensor(session, VALUES), tensor(session, 0 * VALUES)
    with session.program("step") as program:
        program.write(a.buffer, VALUES.nbytes)
        program.call(library, "double_add", [a, o])
        program.read(o.buffer, VALUES.nbytes)
    for more in (0, 5):
        (got,) = session.execute(program, VALUES + more)
        np.testing.assert_array_equal(np.frombuffer(got, np.float32), 2 * (VALUES + more) + 1)


def test_a_poisoned_workspace_shows_who_writes_around_it(session: Session) -> None:
    library = session.upload(LIBRARY)
    a, o = tensor(session, VALUES), tensor(session, VALUES)

    def damaged(place: int) -> tuple[str, ...]:
        report = call_and_report(
            session, library, "overrun", [a, o], {"place": place}, workspace_poison=b"\x5a"
        )
        return report.damaged_guards

    assert (damaged(0), damaged(999), damaged(1000)) == ((), (), ("w",))
    timed = call_and_report(session, library, "overrun", [a, o], {"place": 0}, timed=True)
    assert timed.kernel_nanoseconds is not None and timed.kernel_nanoseconds > 0


def test_a_poisoned_call_shows_who_writes_behind_a_tensor(session: Session) -> None:
    """WebGPU moves a stray write into what is bound, so a guard band is bound as well."""
    library = session.upload(LIBRARY)
    a = tensor(session, VALUES[:10])
    buffer = session.allocate(4096)
    for place, poison, damaged in ((9, None, False), (9, b"\x5a", False), (10, b"\x5a", True)):
        session.fill(buffer, b"\xee")
        o = RemoteTensor(buffer, 256, (10,), "float32")
        call_and_report(
            session, library, "overrun_output", [a, o], {"place": place}, workspace_poison=poison
        )
        band = bytes(session.read(buffer, 4096 - 296, 296))
        assert (band != b"\xee" * len(band)) == damaged, place
        assert bytes(session.read(buffer, 256)) == b"\xee" * 256


def test_a_guard_band_ends_where_another_tensor_of_the_call_begins(session: Session) -> None:
    library = session.upload(LIBRARY)
    buffer = session.allocate(3 * 1024)
    session.write(buffer, VALUES[:256], 1024)
    a, o, p = (RemoteTensor(buffer, at, (256,), "float32") for at in (1024, 2048, 0))
    for target in (o, p):
        call_and_report(session, library, "shared", [a, target], workspace_poison=b"\x5a")
        np.testing.assert_array_equal(read(session, target), VALUES[:256] + 3)
    np.testing.assert_array_equal(read(session, a), VALUES[:256])


def test_a_bad_shader_gives_everything_the_compiler_says(
    session: Session, shown: DevicePage
) -> None:
    broken = edited(LIBRARY, "+ amount;", "+ amonut;")
    with pytest.raises(CompileError) as caught:
        session.upload(broken)
    text = str(caught.value)
    assert "kernel 'add' does not compile" in text
    assert "line 13" in text and "amonut" in text
    shown.wait("#log", "amonut")
    # The session goes on.
    test_an_operator_and_an_entry_run_in_the_browser(session)


def test_a_library_for_another_dialect_is_refused(session: Session, shown: DevicePage) -> None:
    with pytest.raises(CompileError, match=r"'wgsl' modules.*'opencl-c'"):
        session.upload(with_dialect(LIBRARY, "opencl-c"))
    shown.wait("#log", "opencl-c")


def test_a_text_that_does_not_fit_its_launches_is_refused(session: Session) -> None:
    narrow = edited(LIBRARY, "@workgroup_size(64, 1, 1)", "@workgroup_size(32, 1, 1)")
    library = session.upload(narrow)
    a, o = tensor(session, VALUES), tensor(session, 0 * VALUES)
    session.call(library, "add_one", [a, o])
    with pytest.raises(InputError, match=r"workgroups of \(32, 1, 1\)"):
        session.fence()
    session.reset()


def test_too_many_threads_and_too_large_a_buffer_name_the_limit(
    session: Session, shown: DevicePage
) -> None:
    most = session.device.limits.max_threads_per_block
    wide = edited(LIBRARY, "@workgroup_size(64, 1, 1)", f"@workgroup_size({2 * most}, 1, 1)")
    with pytest.raises(LimitExceededError, match=f"needs {2 * most} threads.*has {most}"):
        session.upload(wide)
    session.allocate(session.device.limits.max_buffer_bytes + 4)
    with pytest.raises(LimitExceededError, match="maxBufferSize"):
        session.fence()
    shown.wait("#log", "maxBufferSize")
    session.reset()
    session.fence()


def test_what_is_refused_is_reported_by_the_page_and_not_left_to_the_console(
    session: Session, shown: DevicePage
) -> None:
    """A browser's console gets what nobody has taken: an error that was not caught, a warning."""
    test_an_operator_and_an_entry_run_in_the_browser(session)
    with pytest.raises(CompileError):
        session.upload(edited(LIBRARY, "fn add(", "this is no shader("))
    session.allocate(session.device.limits.max_buffer_bytes + 4)
    with pytest.raises(LimitExceededError):
        session.fence()
    session.reset()
    # What was logged before this is heard with its answer.
    assert shown.evaluate("document.readyState") == "complete"
    assert shown.page.complaints == []
