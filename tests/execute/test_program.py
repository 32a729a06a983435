"""Plans of hybrid runs: nothing is read where it is not, nothing moves twice to one place."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tapml.execute.binding import bind_entry
from tapml.execute.place import DEVICE, HOST, REFERENCE, Place
from tapml.execute.program import Program, plan_program
from tapml.execute.schedule import DeviceCall, DeviceCommands, Download, HostCalls, Observe, Upload
from tests.small_llama import SmallLlama, small_llama

ENTRIES = {"prefill": {"S": 5}, "decode": {}}


def walk(program: Program, state: dict[str, frozenset[Place]]) -> Counter[tuple[str, str]]:
    """Follow a program's copies; fail where a call site reads what is not there."""
    bound = program.bound
    valid: dict[str, set[str]] = {
        storage.name: {HOST} for storage in bound.storages.values() if storage.lifetime == "weight"
    }
    valid |= {bound.values[name].storage: {HOST} for name in bound.entry.inputs}
    valid |= {bound.values[v].storage: set(state[n]) for n, v in bound.before.items()}
    for place, names in program.device_weights.items():
        for name in names:
            valid[name].add(place)
    moves: Counter[tuple[str, str]] = Counter()

    def run(reads: tuple[int, ...], writes: tuple[int, ...], place: str) -> None:
        for index in reads:
            assert place in valid[bound.storage_of(index)]
        for index in writes:
            valid[bound.storage_of(index)] = {place}

    for action in program.actions:
        match action:
            case HostCalls(calls):
                for call in calls:
                    run(call.reads, call.writes, HOST)
            case Observe(call):
                run(call.arguments, (), HOST)
            case DeviceCommands(at, commands):
                for command in commands:
                    assert command.place == at
                    match command:
                        case DeviceCall(call):
                            run(call.reads, call.writes, at)
                        case Upload(storage):
                            assert HOST in valid[storage]
                            valid[storage].add(at)
                            moves[storage, at] += 1
                        case Download(storage):
                            assert at in valid[storage]
                            valid[storage].add(HOST)
                            moves[storage, HOST] += 1
            case _:
                pass
    for name in bound.entry.outputs:
        assert HOST in valid[bound.values[name].storage]
    for name, value in bound.after.items():
        assert program.state_places[name] == valid[bound.values[value].storage]
    return moves


@given(data=st.data(), observed=st.booleans(), name=st.sampled_from(sorted(ENTRIES)))
def test_any_placement_gives_a_program_that_moves_nothing_twice(
    data: st.DataObject, observed: bool, name: str
) -> None:
    plan = small_llama().plan
    bound = bind_entry(plan, name, ENTRIES[name])
    sites = [call.step.site for call in bound.calls]
    devices = st.sampled_from([DEVICE, REFERENCE])
    placement = data.draw(st.dictionaries(st.sampled_from(sites), devices))
    places: list[frozenset[Place]] = [
        frozenset({HOST}),
        frozenset({DEVICE}),
        frozenset({REFERENCE}),
        frozenset({HOST, DEVICE}),
    ]
    state = {key: data.draw(st.sampled_from(places)) for key in bound.before}
    program = plan_program(bound, placement, state, observed=observed)
    moves = walk(program, state)
    assert max(moves.values(), default=0) <= 1


def test_a_plan_on_the_device_reads_back_the_outputs_alone(llama: SmallLlama) -> None:
    bound = bind_entry(llama.plan, "decode", {})
    everything = {call.step.site: DEVICE for call in bound.calls}
    state: dict[str, frozenset[Place]] = {name: frozenset({DEVICE}) for name in bound.before}
    moves = walk(plan_program(bound, everything, state), state)
    outputs = {bound.values[name].storage for name in bound.entry.outputs}
    assert {storage for storage, place in moves if place == HOST} == outputs
    inputs = {bound.values[name].storage for name in bound.entry.inputs}
    assert {storage for storage, place in moves if place == DEVICE} <= inputs
