"""Turns: a session alone goes ahead, two share, and none waits for all of another's work."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_rpc.client import connect
from tapml_rpc.supervisor.turns import LAUNCH_BYTES, TURN_BYTES, Turns, Weights
from tests.conftest import RequireDevice
from tests.rpc.libraries import ADD_ONE, BUSY, launch
from tests.rpc.peers import ServerProcess

ONE, OTHER = b"one", b"other"


@pytest.fixture(scope="module")
def supervisor(require_device: RequireDevice) -> Iterator[ServerProcess]:
    require_device("opencl")
    with ServerProcess(module="tapml_rpc.supervisor.serve") as process:
        yield process


def test_a_session_alone_is_never_held_up() -> None:
    turns = Turns()
    assert all(turns.begin(ONE, TURN_BYTES) for _ in range(10))
    assert not turns.shared(ONE)


def test_two_sessions_have_a_turn_each_and_always_something() -> None:
    turns = Turns()
    assert turns.begin(ONE, 1)
    assert turns.begin(OTHER, 100 * TURN_BYTES), "the first of a turn goes, whatever it weighs"
    assert turns.shared(ONE) and turns.shared(OTHER)
    assert not turns.begin(OTHER, 1)
    assert turns.begin(ONE, TURN_BYTES - 1)
    assert not turns.begin(ONE, 1)
    turns.leave(OTHER)
    assert turns.begin(ONE, 1)


@given(st.lists(st.tuples(st.sampled_from([ONE, OTHER]), st.integers(1, 2 * TURN_BYTES))))
def test_what_was_begun_and_ended_leaves_nothing(batches: list[tuple[bytes, int]]) -> None:
    turns = Turns()
    begun = [batch for batch in batches if turns.begin(*batch)]
    for token, cost in begun:
        turns.end(token, cost)
    assert not turns.shared(ONE) and not turns.shared(OTHER)


def test_a_batch_weighs_its_bytes_and_its_launches() -> None:
    weights = Weights()
    assert weights.cost_of([["fence"], 7, [], [[1]], [{}]], 0) == 1
    launches = [["run", 1, {}], ["call", 1, "f", [], {}, {}]]
    assert weights.cost_of(launches, 100) == 101 + 2 * LAUNCH_BYTES


def test_a_program_weighs_what_it_launches_and_an_unknown_one_the_most() -> None:
    weights = Weights(programs=1, program_commands=9)
    assert weights.cost_of([["program", "step", [["run", 1, {}], ["fence"], 7]]], 0) == 1
    assert weights.cost_of([["program", "another", []]], 0) == 1
    run = ["execute", "step", [], 0]
    assert weights.cost_of([run, run], 0) == 1 + 2 * LAUNCH_BYTES
    for hostile in (["program"], ["program", 1, []], ["program", "a", 1], ["execute", []]):
        assert weights.cost_of([hostile], 0) == 1
    assert weights.cost_of([["execute", "another", [], 0]], 0) == 1 + 9 * LAUNCH_BYTES


def test_a_program_weighs_the_most_of_what_its_name_had() -> None:
    """The worker refuses a second one of the name, and forgets none on a poisoned stream."""
    weights = Weights(programs=1, program_commands=9)
    run = ["execute", "step", [], 0]
    weights.cost_of([["program", "step", [["run", 1, {}]] * 3]], 0)
    weights.cost_of([["program", "step", []]], 0)
    assert weights.cost_of([run], 0) == 1 + 3 * LAUNCH_BYTES
    assert weights.cost_of([["forget", "step"], ["program", "step", []], run], 0) == (
        1 + 3 * LAUNCH_BYTES
    )


def test_a_session_that_floods_the_device_does_not_starve_another(
    supervisor: ServerProcess,
) -> None:
    with connect(supervisor.address) as flooding, connect(supervisor.address) as small:
        launch(flooding, BUSY, 1)
        flooding.fence()
        launch(small, ADD_ONE, 1)
        small.fence()
        for _ in range(8):
            launch(flooding, BUSY, 130)
        started = time.monotonic()
        launch(small, ADD_ONE, 1)
        small.fence()
        waited = time.monotonic() - started
        flooding.fence()
        assert waited < (time.monotonic() - started) / 2
