"""Oclgrind's messages are read as it writes them; nothing that a log may hold raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_targets.check_messages import KINDS, Message, Place
from tapml_targets.opencl.checker_log import is_silenced, read_messages

# Written by Oclgrind 21.10.
READ = """
Invalid read of size 4 at global memory address 0x1000000000020
\tKernel: oob_read
\tEntity: Global(7,0,0) Local(7,0,0) Group(0,0,0)
\t  %0 = load float, float addrspace(1)* %arrayidx, align 4, !dbg !72, !tbaa !73
\tAt line 4 (column 10) of input.cl:
\t  y[i] = x[i + 1];
\t
"""
RACE = """
Read-write data race at local memory address 0x100000000000c
\tKernel: race
\t
\tFirst entity:  Global(4,1,0) Local(4,0,0) Group(0,1,0)
\t  %1 = load float, float addrspace(3)* %arrayidx4, align 4, !dbg !74, !tbaa !67
\tAt line 14 (column 25) of input.cl:
\t  y[get_global_id(0)] = s[7 - i];
\t
\tSecond entity: Global(3,1,0) Local(3,0,0) Group(0,1,0)
\t  store float %0, float addrspace(3)* %arrayidx2, align 4, !dbg !72, !tbaa !67
\tAt line 13 (column 8) of input.cl:
\t  s[i] = x[get_global_id(0)];
\t
"""
DIVERGENCE = """
Work-group divergence detected (barrier)
\tKernel:     diverge
\tWork-group: (0,2,0)
\tOnly 4 out of 8 work-items executed barrier
\t  tail call spir_func void @_Z7barrierj(i32 noundef 1) #12, !dbg !74
\tAt line 21 (column 16) of input.cl:
\t  if (i < 4) { barrier(CLK_LOCAL_MEM_FENCE); y[get_global_id(0)] = 1; }
\t
"""
UNINITIALISED = """
Uninitialized value written to global memory address 0x200000000001c
\tKernel: uninit
\tEntity: Global(7,0,0) Local(7,0,0) Group(0,0,0)
\t  store float %v.0, float addrspace(1)* %arrayidx11, align 4, !dbg !82, !tbaa !70
\tAt line 37 (column 23) of input.cl:
\t  (source not available)
\t
"""
FATAL = """
OCLGRIND FATAL ERROR (/deps/Oclgrind/src/plugins/Uninitialized.cpp:1805)
Unsupported instruction: freeze
\tKernel: transpose
\tEntity: Global(0,0,0) Local(0,0,0) Group(0,0,0)
\t  %cmp = freeze i32 %0
\tDebugging information not available.
\t
"""
SILENT = "\nOclgrind: 4000 errors generated - suppressing further errors\n\n"


def read_one(text: str) -> Message:
    (message,) = read_messages(text)
    return message


def test_an_access_beyond_a_buffer() -> None:
    message = read_one(READ)
    assert message.kind == "out-of-bounds read"
    assert (message.kernel, message.address_space, message.nbytes) == ("oob_read", "global", 4)
    assert message.address == 0x1000000000020
    assert message.places == (Place(4, 10, "read", "(7,0,0)", "(0,0,0)"),)


def test_a_race_has_two_places() -> None:
    message = read_one(RACE)
    assert (message.kind, message.address_space) == ("data race", "local")
    assert message.places == (
        Place(14, 25, "read", "(4,1,0)", "(0,1,0)"),
        Place(13, 8, "write", "(3,1,0)", "(0,1,0)"),
    )


def test_a_divergent_barrier_names_its_group() -> None:
    message = read_one(DIVERGENCE)
    assert (message.kind, message.kernel) == ("barrier divergence", "diverge")
    assert message.places == (Place(21, 16, "barrier", "", "(0,2,0)"),)


def test_a_value_that_is_not_initialised() -> None:
    message = read_one(UNINITIALISED)
    assert (message.kind, message.places[0].line) == ("uninitialised value", 37)
    assert (message.address, message.places[0].access) == (0x200000000001C, "write")


@pytest.mark.parametrize(
    ("headline", "kind"),
    [
        ("Invalid write of size 16 at local memory address 0x1000000000000", "out-of-bounds write"),
        ("Index (8) exceeds static array size (8)", "array index out of range"),
        ("Write-write data race at global memory address 0x2000000000002", "data race"),
        ("Work-group divergence detected (async copy)", "barrier divergence"),
        (
            "Uninitialized address used to read from local memory address 0x1000000000000",
            "uninitialised value",
        ),
        ("Controlflow depends on uninitialized value", "uninitialised value"),
        ("Instruction depends on an uninitialized index value", "uninitialised value"),
        (
            "Invalid memory load - source pointer is not aligned to the pointed type",
            "unaligned access",
        ),
        ("Unaligned address on vload4", "unaligned access"),
        ("Work-item finished without waiting for events", "other"),
    ],
)
def test_every_headline_has_its_kind(headline: str, kind: str) -> None:
    assert read_one(f"\n{headline}\n\tKernel: k\n").kind == kind


def test_what_the_simulator_cannot_do_is_one_message_of_two_lines() -> None:
    message = read_one(FATAL)
    assert message.kind == "simulator error"
    assert message.headline.endswith("Unsupported instruction: freeze")
    assert message.places == ()


def test_a_log_holds_its_messages_in_order_and_says_when_it_falls_silent() -> None:
    text = READ + RACE + DIVERGENCE + FATAL + UNINITIALISED
    kinds = [message.kind for message in read_messages(text)]
    assert kinds == [
        "out-of-bounds read",
        "data race",
        "barrier divergence",
        "simulator error",
        "uninitialised value",
    ]
    assert not is_silenced(text)
    assert is_silenced(text + SILENT)
    assert len(list(read_messages(text + SILENT))) == len(kinds)


@given(
    st.lists(st.sampled_from([READ, RACE, DIVERGENCE, FATAL, UNINITIALISED]), max_size=5),
    st.data(),
)
def test_a_log_that_is_cut_off_gives_the_messages_before_the_cut(
    parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    cut = data.draw(st.integers(0, len(text)))
    whole = list(read_messages(text))
    found = list(read_messages(text[:cut]))
    assert len(found) <= len(whole)
    assert found[:-1] == whole[: max(0, len(found) - 1)]


PIECES = st.sampled_from(
    [
        *"\t\n 0(),:!%", "Kernel: ", "Entity: Global(", "At line ", " (column ", ") of input.cl:",
        "Invalid read of size ", " at global memory address 0x", "Read-write data race at ",
        "OCLGRIND FATAL ERROR", "store", "load", "call", "@_Z7barrierj", "99999999999999999999",
        "\udcff", "\x00", "Work-group: (", "Oclgrind: ", READ, RACE,
    ]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)))
def test_any_text_is_read_and_bounded(text: str) -> None:
    for message in read_messages(text):
        assert message.kind in KINDS
        assert len(message.headline) <= 500
        assert len(message.kernel) <= 512
        assert message.address is None or 0 <= message.address < 1 << 64
        for place in message.places:
            assert 0 <= place.line < 10**9
            assert 0 <= place.column < 10**9
    is_silenced(text)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_text_are_read(data: bytes) -> None:
    list(read_messages(data.decode(errors="replace")))
