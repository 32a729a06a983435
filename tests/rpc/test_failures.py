"""Errors keep their class, message and place across the wire."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_rpc import wire
from tapml_rpc.failures import failure_from_wire, failure_to_wire
from tapml_targets import errors
from tapml_targets.errors import RemoteError, TapmlError

TREE = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, TapmlError)
]


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize("kind", TREE)
def test_every_class_of_the_tree_arrives_as_itself(kind: type[TapmlError]) -> None:
    sent = failure_to_wire(raised(kind("what came")), ["call", 1, "add"], 4)
    arrived = failure_from_wire(wire.unpack(wire.pack(sent)))
    assert type(arrived) is kind
    assert str(arrived) == "what came"
    assert "in raised" in arrived.remote_traceback  # type: ignore[attr-defined]
    assert arrived.command == "call(1, 'add')"  # type: ignore[attr-defined]
    assert sent["index"] == 4


def test_the_protocols_text_names_every_class_that_arrives() -> None:
    text = (Path(__file__).parents[2] / "rpc_server" / "PROTOCOL.md").read_text("utf-8")
    assert all(f"`{kind.__name__}`" in text for kind in TREE if kind is not TapmlError)


def test_an_error_outside_the_tree_is_a_remote_error_that_names_its_class() -> None:
    arrived = failure_from_wire(failure_to_wire(raised(MemoryError("no room"))))
    assert type(arrived) is RemoteError
    assert str(arrived) == "MemoryError: no room"


def test_a_driver_log_travels_with_the_error() -> None:
    sent = failure_to_wire(raised(RemoteError("failed", driver_log="line 3: bad")))
    arrived = failure_from_wire(sent)
    assert isinstance(arrived, RemoteError)
    assert arrived.driver_log == "line 3: bad"
    assert "driver log:\nline 3: bad" in arrived.__notes__


def test_a_long_log_is_shortened_in_the_middle() -> None:
    sent = failure_to_wire(RemoteError("failed", driver_log="start" + "x" * 10**7 + "end"))
    assert len(sent["log"]) < 70_000
    assert sent["log"].startswith("start") and sent["log"].endswith("end")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
    | st.dictionaries(
        st.sampled_from(["kind", "message", "traceback", "command", "log"]),
        st.text() | st.integers() | st.none() | st.sampled_from(["SystemExit", "TapmlError"]),
    )
)
def test_whatever_a_peer_calls_an_error_becomes_one_of_the_tree(data: object) -> None:
    assert isinstance(failure_from_wire(data), TapmlError)
