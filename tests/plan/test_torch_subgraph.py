"""Torch sub-graphs as data: what is stored is what is read back, what is hostile is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.plan.torch_subgraph import (
    ALLOWED,
    MAX_ARGUMENTS,
    MAX_NODES,
    Argument,
    DataType,
    Extent,
    Reference,
    Text,
    TorchForm,
    TorchInput,
    TorchNode,
    TorchSubgraph,
    check_subgraph,
    form_at,
    split_operation,
)
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression
from tapml_targets.library import Parameter

PARAMETERS = (
    Parameter("input_0", (4,), "float32", "input"),
    Parameter("output_0", (4,), "float32", "output"),
)
INPUT = TorchInput("i0", "input_0", (4,), (2, 2))
NEGATED = TorchSubgraph(
    (INPUT,), (TorchNode("n0", "aten.neg.default", (Reference("i0"),)),), (Reference("n0"),)
)

texts = st.text(max_size=8)
extents: st.SearchStrategy[Expression] = st.one_of(
    st.integers(-(2**63), 2**63 - 1), texts, st.tuples(st.just("mul"), texts, st.integers(0, 99))
)
leaves: st.SearchStrategy[Argument] = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False),
    extents.map(Extent),
    texts.map(DataType),
    texts.map(Text),
    st.builds(Reference, texts, st.none() | st.integers(0, 9)),
)
arguments = leaves | st.lists(leaves, max_size=3).map(tuple)
shapes = st.lists(extents, max_size=3).map(tuple)
nodes = st.builds(
    TorchNode,
    texts,
    texts,
    st.lists(arguments, max_size=3).map(tuple),
    st.lists(st.tuples(texts, arguments), max_size=2).map(tuple),
)
subgraphs = st.builds(
    TorchSubgraph,
    st.lists(st.builds(TorchInput, texts, texts, shapes, shapes), max_size=2).map(tuple),
    st.lists(nodes, max_size=3).map(tuple),
    st.lists(st.builds(Reference, texts, st.none() | st.integers(0, 9)), max_size=2).map(tuple),
)
forms = st.builds(TorchForm, st.lists(texts, max_size=3).map(tuple), st.none() | subgraphs, texts)


def plain(form: TorchForm) -> Any:
    return msgpack.unpackb(msgspec.msgpack.encode(form))


def read(wire: Any) -> TorchForm:
    return msgspec.convert(msgpack.unpackb(msgpack.packb(wire), use_list=False), TorchForm)


@given(forms)
def test_a_form_comes_back_as_it_was(form: TorchForm) -> None:
    assert read(plain(form)) == form


@given(forms, st.data())
def test_a_form_with_anything_in_a_place_is_read_or_refused(
    form: TorchForm, data: st.DataObject
) -> None:
    wire = plain(form)
    target = wire
    while isinstance(target, list | dict) and target:
        places = list(target) if isinstance(target, dict) else range(len(target))
        position = data.draw(st.sampled_from(places))
        if not isinstance(target[position], list | dict) or data.draw(st.booleans()):
            target[position] = data.draw(
                st.none()
                | st.integers(-(2**63), 2**64 - 1)
                | st.text(max_size=3)
                | st.just([])
                | st.just([[{}]])
            )
            break
        target = target[position]
    try:
        found = read(wire)
    except msgspec.ValidationError:
        return
    # What was read is well formed: it can be written again.
    assert read(plain(found)) == found


def test_lists_in_lists_in_lists_are_refused() -> None:
    deep: object = None
    for _ in range(400):
        deep = [deep]
    wire = plain(TorchForm((), NEGATED))
    wire["subgraph"]["nodes"][0]["arguments"] = [deep]
    with pytest.raises(msgspec.ValidationError, match="Expected"):
        read(wire)


def test_a_valid_subgraph_is_accepted() -> None:
    check_subgraph(NEGATED, PARAMETERS)


@pytest.mark.parametrize(
    "operation",
    [
        "os.system.default",
        "aten.from_file.default",
        "aten.__class__.default",
        "aten.mul.__class__",
        "aten.mul.Tensor.__globals__",
        "prims.mul.default",
        "aten.mul",
        "aten.mul.Tensor\n",
        "aten.set_data.default",
        "aten.resize_.default",
        "aten.empty.memory_format",
        "aten.as_strided.default",
        "aten.rand.default",
        "quantized.linear.default",
        "",
    ],
)
def test_an_operation_outside_the_list_is_refused(operation: str) -> None:
    node = replace(NEGATED.nodes[0], operation=operation)
    with pytest.raises(InputError, match="is not allowed in a sub-graph"):
        check_subgraph(replace(NEGATED, nodes=(node,)), PARAMETERS)


def test_listed_operations_change_nothing_in_place() -> None:
    assert not [name for name in ALLOWED if name.endswith("_")]
    assert split_operation("aten._to_copy.default") == ("_to_copy", "default")


@pytest.mark.parametrize(
    ("subgraph", "message"),
    [
        (
            replace(
                NEGATED,
                nodes=tuple(replace(NEGATED.nodes[0], name=f"n{i}") for i in range(MAX_NODES + 1)),
            ),
            "at most 256 nodes",
        ),
        (
            replace(
                NEGATED,
                nodes=(replace(NEGATED.nodes[0], arguments=(1.0,) * (MAX_ARGUMENTS + 1)),),
            ),
            "at most 4096 arguments",
        ),
        (replace(NEGATED, nodes=NEGATED.nodes * 2), "defines 'n0' twice"),
        (replace(NEGATED, inputs=(replace(INPUT, name="n0"),)), "before it is defined"),
        (replace(NEGATED, outputs=(Reference("n1"),)), "'n1' before it is defined"),
        (replace(NEGATED, outputs=()), "gives 0 tensors, its operator writes 1"),
        (replace(NEGATED, inputs=(replace(INPUT, parameter="output_0"),)), "not an input"),
        (
            replace(NEGATED, nodes=(replace(NEGATED.nodes[0], arguments=((((1.0,),),),)),)),  # type: ignore[arg-type]
            "nested too deep",
        ),
    ],
)
def test_what_does_not_hold_together_is_refused(subgraph: TorchSubgraph, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_subgraph(subgraph, PARAMETERS)


def test_the_form_of_a_site_is_the_one_that_names_it_or_the_only_one() -> None:
    first, second = TorchForm(("a", "b"), NEGATED), TorchForm(("c",), None, "why")
    assert form_at((first, second), "c") is second
    assert form_at((first, second), "d") is None
    assert form_at((first,), "d") is first
    assert form_at((), "a") is None
