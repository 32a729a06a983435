"""What is stored is what is read back; what is damaged is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.plan.format import FORMAT, VERSION, pack, plan_hash, unpack
from tapml.plan.graph_plan import (
    Body,
    CallStep,
    Entry,
    GraphPlan,
    Operator,
    Origin,
    OutputKind,
    Storage,
    SymbolBounds,
    Value,
    ViewStep,
)
from tapml_targets.errors import ProtocolError
from tapml_targets.expression import Expression
from tapml_targets.library import Parameter
from tests.small_llama import SmallLlama

NAMES = st.text(min_size=1, max_size=8)
OPERATOR_NAMES = st.from_regex(r"[\w+$@-][\w.+$@-]{0,7}", fullmatch=True)
DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "int32", "bool"])
KINDS: st.SearchStrategy[OutputKind] = st.sampled_from(get_args(OutputKind))
SIZES = st.integers(min_value=0, max_value=2**40)
EXTENTS: st.SearchStrategy[Expression] = st.one_of(
    SIZES, st.just("S"), st.tuples(st.sampled_from(["add", "mul"]), st.just("S"), SIZES)
)
SHAPES = st.lists(EXTENTS, max_size=3).map(tuple)


@st.composite
def operators(draw: st.DrawFn, name: str, body: bool = True) -> Operator:
    reads = draw(st.integers(0, 3))
    writes = draw(st.integers(1, 2))
    parameters = tuple(
        Parameter(
            f"tensor_{index}",
            draw(SHAPES),
            draw(DTYPES),
            "input" if index < reads else "output",
        )
        for index in range(reads + writes)
    )
    return Operator(
        name=name,
        hash=draw(st.text("0123456789abcdef", min_size=16, max_size=16)),
        parameters=parameters,
        symbols=draw(st.sampled_from([(), ("rows",)])),
        function=draw(st.text(max_size=20)),
        script=draw(st.text(max_size=20)),
        output_kinds=tuple(draw(KINDS) for _ in range(writes)),
        body=draw(bodies(parameters)) if body and draw(st.booleans()) else None,
        variants=draw(st.dictionaries(st.sampled_from(["gpu", "cpu"]), NAMES, max_size=2)),
    )


@st.composite
def bodies(draw: st.DrawFn, parameters: tuple[Parameter, ...]) -> Body:
    inner = replace(draw(operators("small", body=False)), parameters=parameters, symbols=())
    kind: OutputKind = "value"
    inner = replace(inner, output_kinds=(kind,) * len(inner.written))
    entry = entry_of(draw, "body", inner)
    return Body({"small": inner}, entry)


def entry_of(draw: st.DrawFn, name: str, operator: Operator) -> Entry:
    """An entry that calls one operator on its own inputs, then views the first result."""
    values = {p.name: Value(p.name, p.name, 0, p.shape, p.dtype) for p in operator.parameters}
    storages = {
        p.name: Storage(p.name, draw(EXTENTS), "input" if p.role == "input" else "activation")
        for p in operator.parameters
    }
    first = operator.written[0]
    values["view"] = Value("view", first.name, 0, draw(SHAPES), first.dtype)
    call = CallStep(
        site=f"{name}/{operator.name}",
        operator=operator.name,
        arguments=tuple(values)[:-1],
        symbols=tuple((symbol, draw(EXTENTS)) for symbol in operator.symbols),
        origins=tuple(draw(st.lists(st.builds(Origin, NAMES, NAMES, NAMES, NAMES), max_size=2))),
        layer=draw(st.none() | st.integers(0, 99)),
    )
    return Entry(
        name=name,
        symbols=("S",),
        inputs=tuple(p.name for p in operator.read),
        outputs=tuple(p.name for p in operator.written),
        state=(),
        values=values,
        storages=storages,
        steps=(call, ViewStep(first.name, "view")),
        bounds=(SymbolBounds("S", 1, draw(st.none() | SIZES)),),
    )


@st.composite
def plans(draw: st.DrawFn) -> GraphPlan:
    names = draw(st.lists(OPERATOR_NAMES, min_size=1, max_size=3, unique=True))
    known = {name: draw(operators(name)) for name in names}
    entries = {
        f"entry {index}": entry_of(draw, f"entry {index}", operator)
        for index, operator in enumerate(known.values())
    }
    metadata = draw(st.dictionaries(NAMES, NAMES, max_size=2))
    return GraphPlan(draw(NAMES), known, entries, weights={}, state={}, metadata=metadata)


@given(plans())
@settings(max_examples=60, deadline=None)
def test_what_is_stored_is_what_is_read_back(plan: GraphPlan) -> None:
    packed = pack(plan)
    again = unpack(packed)
    assert again == plan
    assert list(again.operators) == list(plan.operators)
    assert pack(again) == packed


@given(plans(), st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_are_refused_or_another_plan(plan: GraphPlan, data: st.DataObject) -> None:
    packed = bytearray(pack(plan))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = unpack(bytes(packed))
    except ProtocolError:
        return
    assert unpack(pack(read)) == read


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(data)


@pytest.mark.parametrize(
    "frame",
    [
        [FORMAT, VERSION, None],
        [FORMAT, VERSION, [1, [], [], [], [], []]],
        [FORMAT, VERSION, ["plan", [], [], [], []]],
        ["something else", VERSION, []],
        {"a": 1},
    ],
)
def test_data_of_another_shape_is_refused(frame: Any) -> None:
    with pytest.raises(ProtocolError):
        unpack(msgpack.packb(frame))


class Foreign(str):
    """A text as TVM and PyTorch give it."""

    __slots__ = ()


def test_texts_of_other_libraries_are_stored_as_texts() -> None:
    plan = GraphPlan(Foreign("m"), {}, {}, {}, {}, {Foreign("torch"): Foreign("2")})
    assert unpack(pack(plan)) == plan


def test_another_version_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"version 99 is not supported, expected"):
        unpack(msgpack.packb([FORMAT, 99, []]))


def test_the_hash_is_of_what_is_computed(llama: SmallLlama) -> None:
    plan = llama.imported.plan
    assert plan_hash(replace(plan, name="other", metadata={})) == plan_hash(plan)
    fewer = replace(plan, entries={"decode": plan.entries["decode"]})
    assert plan_hash(fewer) != plan_hash(plan)


def test_the_plan_of_a_model_survives(llama: SmallLlama) -> None:
    assert unpack(pack(llama.imported.plan)) == llama.imported.plan
