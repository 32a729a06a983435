"""Runs move no value twice to the same place, held against a count that plans nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.compiler import Compiler
from tapml.execute.binding import BoundEntry, bind_entry
from tapml.execute.generate import greedy
from tapml.execute.minimum_moves import minimum_moves
from tapml.execute.moved_bytes import WEIGHTS, CountedExecutor
from tapml.execute.place import DEVICE, HOST, REFERENCE, Place
from tapml.execute.program import Program, plan_program
from tapml.execute.schedule import DeviceCall, DeviceCommands
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.library import Library
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.small_llama import PROMPTS, SmallLlama, small_llama

PLACES: tuple[frozenset[Place], ...] = (
    frozenset({HOST}),
    frozenset({DEVICE}),
    frozenset({HOST, DEVICE}),
    frozenset({REFERENCE}),
    frozenset({HOST, DEVICE, REFERENCE}),
)


@cache
def bound(entry: str) -> BoundEntry:
    """An entry of the small model, the prefill at seven tokens."""
    plan = small_llama().plan
    return bind_entry(plan, entry, dict.fromkeys(plan.entries[entry].symbols, 7))


def any_placement(entry: str) -> st.SearchStrategy[dict[str, Place]]:
    """Any call sites of an entry on either of two devices, none and all among them."""
    sites = [call.step.site for call in bound(entry).calls]
    where = st.sampled_from([HOST, DEVICE, REFERENCE])
    return st.lists(where, min_size=len(sites), max_size=len(sites)).map(
        lambda chosen: {s: at for s, at in zip(sites, chosen, strict=True) if at != HOST}
    )


def bytes_moved(program: Program) -> int:
    """Bytes one run copies between host and devices, weights apart."""
    return sum(
        program.bound.storages[command.storage].nbytes
        for action in program.actions
        if isinstance(action, DeviceCommands)
        for command in action.commands
        if not isinstance(command, DeviceCall)
    )


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_planned_run_moves_the_minimum_whatever_is_placed(data: st.DataObject) -> None:
    entry = bound(data.draw(st.sampled_from(["prefill", "decode"])))
    placement = data.draw(any_placement(entry.entry.name))
    state = {name: data.draw(st.sampled_from(PLACES)) for name in entry.before}
    program = plan_program(entry, placement, state)
    fewest = minimum_moves(entry, placement, state)
    assert bytes_moved(program) == fewest.nbytes
    assert program.device_weights == fewest.weights
    assert dict(program.state_places) == dict(fewest.state_after)


def test_placements_on_one_side_move_no_bytes() -> None:
    decode = bound("decode")
    everywhere = {call.step.site: DEVICE for call in decode.calls}
    on_host = dict.fromkeys(decode.before, frozenset({HOST}))
    on_device = dict.fromkeys(decode.before, frozenset({DEVICE}))
    assert minimum_moves(decode, {}, on_host).nbytes == 0
    ends = {decode.values[name].storage for name in (*decode.entry.inputs, *decode.entry.outputs)}
    needed = {
        decode.storage_of(index) for call in decode.calls for index in (*call.reads, *call.writes)
    }
    fewest = minimum_moves(decode, everywhere, on_device)
    assert fewest.nbytes == sum(decode.storages[name].nbytes for name in ends & needed)
    moved_back = minimum_moves(decode, {}, on_device)
    assert moved_back.nbytes == sum(
        decode.storages[decode.values[value].storage].nbytes for value in decode.before.values()
    )


@pytest.fixture(scope="module")
def session(require_device: RequireDevice) -> Iterator[Session]:
    require_device("opencl")
    with open_local("opencl") as opened:
        yield opened


@pytest.fixture(scope="module")
def libraries(llama: SmallLlama, session: Session) -> dict[str, Library]:
    target = Target("opencl", limits=session.device.limits)
    with Compiler() as compiler:
        outcomes = compiler.compile_all(llama.plan.operators.values(), target)
        return {o.name: outcome for o, outcome in outcomes if isinstance(outcome, Library)}


def generate(
    llama: SmallLlama, runner: CountedExecutor, prompts: Sequence[tuple[int, ...]]
) -> None:
    for prompt in prompts:
        list(greedy(llama.model, runner, prompt, 3, stop_at_end=False))


def test_real_runs_move_the_minimum_from_placement_to_placement(
    llama: SmallLlama, session: Session, libraries: dict[str, Library]
) -> None:
    """Weights and the zero state that are on the device stay there when the placement changes."""
    executor = llama.executor(session)
    runner = CountedExecutor(executor)
    names = list(libraries)
    uploaded = 0
    for placed in (names[::2], names[1::2], names[3:9], [], names):
        for name in names:
            if name in placed:
                executor.place(name, libraries[name])
            else:
                executor.unplace(name)
        generate(llama, runner, PROMPTS)
        counts = runner.take_counts()
        assert set(counts) == {"prefill", "decode", WEIGHTS}
        for entry, each in counts.items():
            assert each.moved == each.minimum, (entry, placed)
        assert (counts["prefill"].moved > 0) == bool(placed)
        uploaded += counts[WEIGHTS].moved
    assert uploaded == sum(array.nbytes for array in executor.weights.values())
    generate(llama, runner, PROMPTS)
    assert runner.take_counts()[WEIGHTS].moved == 0
    executor.release_device()
    runner.forget_device()
    generate(llama, runner, PROMPTS[:1])
    for entry, each in runner.take_counts().items():
        assert each.moved == each.minimum > 0, entry


def test_sending_a_value_twice_exceeds_the_minimum(
    llama: SmallLlama, session: Session, libraries: dict[str, Library]
) -> None:
    """What the count is for: an executor that forgets what the device has."""
    executor = llama.executor(session)
    runner = CountedExecutor(executor)
    for name, library in libraries.items():
        executor.place(name, library)
    generate(llama, runner, PROMPTS[:1])
    runner.take_counts()
    executor.release_device()
    generate(llama, runner, PROMPTS[:1])
    counts = runner.take_counts()
    assert counts[WEIGHTS].moved > counts[WEIGHTS].minimum == 0
