"""Packed Libraries come back equal, and damaged ones are refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tapml_targets.errors import ProtocolError
from tapml_targets.library import (
    Bind,
    BufferArgument,
    Condition,
    EntryCall,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
    TensorArgument,
)
from tapml_targets.library_format import MAGIC, library_hash, pack, unpack
from tests.targets.libraries import VECTORS, add_one, library
from tests.targets.strategies import libraries

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)


@given(libraries())
@SLOW
def test_unpacking_gives_the_packed_library_and_packing_that_the_same_bytes(
    original: Library,
) -> None:
    data = pack(original)
    found = unpack(data)
    assert found == original
    assert pack(found) == data


def test_the_order_things_were_added_in_does_not_change_the_bytes() -> None:
    original = library()
    turned = replace(
        original,
        operators=dict(reversed(original.operators.items())),
        kernels=dict(reversed(original.kernels.items())),
    )
    assert library_hash(pack(turned)) == library_hash(pack(original))


def test_the_hash_follows_the_code() -> None:
    original = library()
    module = original.modules[0]
    other = replace(original, modules=(replace(module, code=module.code + b"\n"),))
    assert library_hash(pack(other)) != library_hash(pack(original))


@given(st.data())
@SLOW
def test_damaged_bytes_are_refused_or_still_a_consistent_library(data: st.DataObject) -> None:
    packed = bytearray(pack(library()))
    for _ in range(data.draw(st.integers(1, 3))):
        if not packed:
            break
        position = data.draw(st.integers(0, len(packed) - 1))
        how = data.draw(st.sampled_from(["set", "insert", "delete", "cut"]))
        if how == "set":
            packed[position] = data.draw(st.integers(0, 255))
        elif how == "insert":
            packed[position:position] = data.draw(st.binary(min_size=1, max_size=4))
        elif how == "delete":
            del packed[position]
        else:
            del packed[max(1, position) :]
    try:
        found = unpack(bytes(packed))
    except ProtocolError:
        return
    pack(found)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(st.data())
@SLOW
def test_a_header_with_anything_in_any_place_is_refused_or_consistent(data: st.DataObject) -> None:
    frame = struct.Struct("<8sII")
    packed = pack(library())
    _, version, size = frame.unpack_from(packed)
    header = msgpack.unpackb(packed[frame.size : frame.size + size])
    place: Any = header
    for _ in range(data.draw(st.integers(0, 7))):
        index = data.draw(st.integers(0, len(place) - 1))
        if not (isinstance(place[index], list) and place[index]):
            break
        place = place[index]
    place[data.draw(st.integers(0, len(place) - 1))] = data.draw(PLAIN)
    body = msgpack.packb(header)
    whole = frame.pack(MAGIC, version, len(body)) + body + packed[frame.size + size :]
    try:
        found = unpack(whole)
    except ProtocolError:
        return
    pack(found)


def drop_default(header: Any) -> None:
    del header[3][0][6]


def write_no_size(header: Any) -> None:
    [add_one] = [operator for operator in header[4] if operator[0] == "add_one"]
    [buffer, *_] = [each for each in add_one[2][0][2] if each[0] == "buffer"]
    buffer[3:] = [None]


@pytest.mark.parametrize(
    "change",
    [
        drop_default,
        write_no_size,
        lambda header: header[3].reverse(),
        lambda header: header[4].append(header[4][-1]),
        lambda header: header[1].extend([["z", ""], ["a", ""]]),
    ],
    ids=["field left out", "no size", "out of order", "there twice", "metadata out of order"],
)
def test_a_library_has_one_form(change: Callable[[Any], None]) -> None:
    frame = struct.Struct("<8sII")
    packed = pack(library())
    _, version, size = frame.unpack_from(packed)
    header = msgpack.unpackb(packed[frame.size : frame.size + size])
    change(header)
    body = msgpack.packb(header)
    with pytest.raises(ProtocolError, match="a Library's header is not as `pack` writes it"):
        unpack(frame.pack(MAGIC, version, len(body)) + body + packed[frame.size + size :])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(data)


def test_deeply_nested_data_is_refused_without_exhausting_the_stack() -> None:
    frame = struct.Struct("<8sII")
    for body in (b"\x91" * 900 + b"\xc0", b"\x91" * 100_000 + b"\xc0"):
        with pytest.raises(ProtocolError):
            unpack(frame.pack(MAGIC, 1, len(body)) + body)


def test_another_version_is_named() -> None:
    packed = bytearray(pack(library()))
    packed[8] = 9
    with pytest.raises(
        ProtocolError, match="of version 9, and this tapml reads version 3: compile it again"
    ):
        unpack(packed)


def launch(*arguments: Any, kernel: str = "add", grid: Any = (1, 1, 1)) -> OperatorProgram:
    return structs.replace(add_one(), statements=(Launch(kernel, arguments, grid),))


def with_operator(operator: OperatorProgram) -> Library:
    return replace(library(), operators=library().operators | {"add_one": operator})


def with_entry(**changes: Any) -> Library:
    entry = library().entries["chain"]
    return replace(library(), entries={"chain": structs.replace(entry, **changes)})


def with_options(*options: str) -> Library:
    (module,) = library().modules
    return replace(library(), modules=(replace(module, options=options),))


def nested(depth: int) -> OperatorProgram:
    statements: Any = ()
    for _ in range(depth):
        statements = (Condition(1, statements),)
    return structs.replace(add_one(), statements=statements)


FAULTS: dict[str, tuple[Callable[[], Library], str]] = {
    "a kernel that is not there": (
        lambda: with_operator(launch(kernel="missing")),
        "no such kernel",
    ),
    "a buffer that is not there": (
        lambda: with_operator(launch(BufferArgument("q"))),
        "no parameter or workspace 'q'",
    ),
    "a workspace as a tensor": (
        lambda: replace(
            library(),
            operators={
                "peek": structs.replace(
                    library().operators["peek"],
                    statements=(Launch("peek", (TensorArgument("w"),)),),
                )
            },
            entries={},
        ),
        "no parameter 'w' to pass as a tensor",
    ),
    "a symbol nothing gives": (
        lambda: with_operator(launch(ScalarArgument("m", "int32"))),
        "no shape or symbol gives 'm'",
    ),
    "a symbol bound in one branch only": (
        lambda: with_operator(
            structs.replace(
                add_one(),
                statements=(
                    Condition(1, (Bind("k", 1),)),
                    Launch("add", (ScalarArgument("k", "int32"),)),
                ),
            )
        ),
        "no shape or symbol gives 'k'",
    ),
    "a dtype nobody knows": (
        lambda: with_operator(
            structs.replace(add_one(), parameters=(Parameter("a", (1,), "float7", "input"),))
        ),
        "unknown dtype 'float7'",
    ),
    "two parameters of one name": (
        lambda: with_operator(structs.replace(add_one(), parameters=VECTORS + VECTORS)),
        "'a' is there twice",
    ),
    "a role that is none": (
        lambda: with_operator(
            structs.replace(add_one(), parameters=(Parameter("a", ("n",), "float32", "both"),))  # type: ignore[arg-type]
        ),
        "role must be",
    ),
    "statements without end": (lambda: with_operator(nested(40)), "nested deeper"),
    "a module that is not there": (
        lambda: replace(library(), kernels=library().kernels | {"add": Kernel("add", "add", 7)}),
        "module 7 does not exist",
    ),
    "a kernel symbol that is no name": (
        lambda: replace(library(), kernels=library().kernels | {"add": Kernel("add", "a b;", 0)}),
        "not a function name",
    ),
    "an operator under another name": (
        lambda: replace(library(), operators={"x": add_one()}, entries={}),
        "stored under another name",
    ),
    "an entry that calls what is not there": (
        lambda: with_entry(calls=(EntryCall("nothing", ()),)),
        "no such operator",
    ),
    "an entry that passes what is not there": (
        lambda: with_entry(calls=(EntryCall("add_one", ("in", "nowhere")),)),
        "no value 'nowhere'",
    ),
    "an entry that passes too little": (
        lambda: with_entry(calls=(EntryCall("add_one", ("in",)),)),
        "expected 2 arguments, got 1",
    ),
    "an entry that passes no symbol": (
        lambda: with_entry(calls=(EntryCall("overrun", ("in", "out")),)),
        "expected symbols",
    ),
    "a build option that is a compiler's flag": (
        lambda: with_options("-cl-fast-relaxed-math"),
        "is no name like 'fast-math'",
    ),
    "build options out of order": (
        lambda: with_options("fast-math", "exact-division"),
        "must be sorted",
    ),
    "a build option named twice": (lambda: with_options("a", "a"), "must be sorted"),
    "a name that cannot be printed": (
        lambda: replace(library(), target="a\nb"),
        "printable",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_inconsistent_library_is_neither_packed_nor_sent(fault: str) -> None:
    make, message = FAULTS[fault]
    with pytest.raises(ProtocolError, match=message):
        pack(make())
