"""Messages become findings: one per fault, with source, tensor and count."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tapml.check.findings import TensorPlace, findings_of, merged
from tapml_targets.check_messages import KINDS, Message, Place
from tapml_targets.library import CodeModule, Kernel, Library

SOURCE = "\n".join(f"line {number}" for number in range(1, 10))
LIBRARY = Library(
    "opencl",
    (CodeModule("opencl-c", b"other"), CodeModule("opencl-c", SOURCE.encode())),
    {"softmax": Kernel("softmax", "softmax_kernel", 1)},
    {},
)
TENSORS = (TensorPlace(3, "x", 16), TensorPlace(4, "y", 32))


def read_at(address: int, line: int = 4, work_item: str = "(0,0,0)") -> Message:
    place = Place(line, 2, "read", work_item, "(0,0,0)")
    return Message(
        "out-of-bounds read",
        f"Invalid read of size 4 at global memory address {address:#x}",
        "softmax_kernel",
        (place,),
        "global",
        address,
        4,
    )


def test_one_fault_in_many_work_items_is_one_finding_with_its_first_as_example() -> None:
    messages = [read_at((3 << 48) + 16 + 4 * i, work_item=f"({i},0,0)") for i in range(5)]
    (finding,) = findings_of(messages, LIBRARY, operator="softmax", test="t", tensors=TENSORS)
    assert (finding.count, finding.places[0].work_item) == (5, "(0,0,0)")
    assert (finding.tensor, finding.byte, finding.tensor_bytes) == ("x", 16, 16)
    assert (finding.line, finding.text) == (4, "line 4")
    assert finding.places[0].excerpt == (
        "     2  line 2", "     3  line 3", ">    4  line 4", "     5  line 5", "     6  line 6",
    )  # fmt: skip
    assert "byte 16 of x, which has 16" in "\n".join(finding.lines())


def test_two_lines_or_two_tensors_are_two_findings() -> None:
    messages = [read_at((3 << 48) + 16), read_at((3 << 48) + 16, line=5), read_at((4 << 48) + 32)]
    found = findings_of(messages, LIBRARY, operator="softmax", test="t", tensors=TENSORS)
    assert [(each.line, each.tensor) for each in found] == [(4, "x"), (5, "x"), (4, "y")]


def test_an_address_just_before_a_buffer_is_that_buffers() -> None:
    (finding,) = findings_of(
        [read_at((4 << 48) - 8)], LIBRARY, operator="softmax", test="t", tensors=TENSORS
    )
    assert (finding.tensor, finding.byte) == ("y", -8)


def test_findings_of_several_tests_are_counted_together() -> None:
    first, second = (
        findings_of([read_at((3 << 48) + 16)], LIBRARY, operator="softmax", test=test,
                    tensors=TENSORS, at_least=test == "b")
        for test in "ab"
    )  # fmt: skip
    (both,) = merged((*first, *second))
    assert (both.test, both.count, both.at_least) == ("a", 2, True)


def test_a_long_generated_line_is_shown_around_its_column() -> None:
    long = "x" * 300 + "HERE" + "y" * 300
    library = Library(
        "opencl", (CodeModule("opencl-c", long.encode()),), {"k": Kernel("k", "k", 0)}, {}
    )
    message = Message("data race", "race", "k", (Place(1, 301, "write"),))
    (finding,) = findings_of([message], library, operator="o", test="t")
    (shown,) = finding.places[0].excerpt
    assert "HERE" in shown
    assert len(shown) < 140
    assert finding.text == long


places = st.builds(
    Place,
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.sampled_from(["read", "write", "barrier", ""]),
    st.just("(1,0,0)"),
    st.just(""),
)
messages = st.builds(
    Message,
    st.sampled_from(KINDS),
    st.text(max_size=80),
    st.sampled_from(["", "softmax_kernel", "unknown"]),
    st.lists(places, max_size=2).map(tuple),
    st.sampled_from(["", "global", "local"]),
    st.none() | st.integers(0, (1 << 64) - 1),
    st.integers(0, 64),
)


@given(st.lists(messages, max_size=8))
def test_every_message_is_counted_once_and_the_result_is_json(
    given_messages: list[Message],
) -> None:
    found = findings_of(given_messages, LIBRARY, operator="softmax", test="t", tensors=TENSORS)
    assert sum(each.count for each in found) == len(given_messages)
    assert len({each.identity for each in found}) == len(found)
    for each in found:
        assert json.loads(json.dumps(each.to_json()))["operator"] == "softmax"
        assert each.lines()
