"""Whatever the plan, memory is shared only between what is never needed together."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from tapml.compiler.entry_program import entry_program
from tapml.plan.graph_plan import CallStep, Entry, GraphPlan, Lifetime, Storage, Value
from tapml_targets.expression import Expression, evaluate

_sizes = st.integers(1, 4096) | st.integers(1, 64).map(lambda factor: ("mul", factor, "n"))


@st.composite
def _entries(draw: st.DrawFn) -> Entry:
    """An entry that reads ``x``, computes a tangle of tensors, and returns the last."""
    names = ["x"]
    calls = []
    for index in range(draw(st.integers(1, 12))):
        read = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        written = [f"v{index}.{part}" for part in range(draw(st.integers(1, 2)))]
        calls.append(CallStep(f"s{index}", f"o{len(read)}", (*read, *written)))
        names += written
    result = names[-1]
    sizes: dict[str, Expression] = {name: draw(_sizes) for name in names}
    lifetimes: dict[str, Lifetime] = {"x": "input"}
    return Entry(
        name="run",
        symbols=("n",),
        inputs=("x",),
        outputs=(result,),
        state=(),
        values={name: Value(name, name, 0, (sizes[name], "n"), "uint8") for name in names},
        storages={
            name: Storage(name, ("mul", sizes[name], "n"), lifetimes.get(name, "activation"))
            for name in names
        },
        steps=tuple(calls),
    )


@given(entry=_entries(), n=st.integers(1, 3000))
def test_tensors_that_are_needed_together_never_share_memory(entry: Entry, n: int) -> None:
    program = entry_program(GraphPlan("plan", {}, {"run": entry}, {}, {}), entry)
    home = {value.name: value.storage for value in program.values}
    first = {
        name: index
        for index, call in reversed(list(enumerate(entry.calls)))
        for name in call.arguments
    }
    last = {name: index for index, call in enumerate(entry.calls) for name in call.arguments}
    for one, other in combinations(home, 2):
        if home[one] == home[other]:
            assert last[one] < first[other] or last[other] < first[one]
    room = {storage.name: evaluate(storage.nbytes, {"n": n}) for storage in program.storages}
    for name, storage in home.items():
        if storage in room:
            assert evaluate(entry.storages[name].nbytes, {"n": n}) <= room[storage]


@given(entry=_entries())
def test_calls_stay_in_order_with_their_arguments(entry: Entry) -> None:
    program = entry_program(GraphPlan("plan", {}, {"run": entry}, {}, {}), entry)
    assert [(c.operator, c.arguments) for c in program.calls] == [
        (c.operator, c.arguments) for c in entry.calls
    ]
    assert [p.name for p in program.parameters] == ["input:x", f"output:{entry.outputs[0]}"]
