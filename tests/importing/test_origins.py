"""Where operations come from."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from tapml.importing.origins import layer_of, origins_of, strip_prefix


def graph_of(traced: set[str], **inputs: str) -> fx.Graph:
    """Calls by name, each with the names of its inputs; those in `traced` have a stack trace."""
    graph, made = fx.Graph(), dict[str, fx.Node]()
    for name, of in inputs.items():
        arguments = [made[each] for each in of.split()]
        made[name] = graph.create_node("call_function", torch.add, (arguments,), name=name)
        if name in traced:
            made[name].meta["stack_trace"] = f'File "/model/{name}.py", line 7'
    return graph


def sources(graph: fx.Graph) -> dict[str, str]:
    return {name: origin.source for name, origin in origins_of(graph.nodes).items()}


@pytest.mark.parametrize(
    ("traced", "place"),
    [
        ("node far user", "node.py:7"),
        ("first second", "first.py:7"),
        ("second user", "second.py:7"),
        ("far second", "second.py:7"),
        ("far user", "far.py:7"),
        ("user last", "user.py:7"),
        ("last", "last.py:7"),
        ("", ""),
    ],
)
def test_a_node_without_a_trace_takes_the_place_of_the_nearest_before_and_else_behind_it(
    traced: str, place: str
) -> None:
    graph = graph_of(
        set(traced.split()),
        far="", first="far", second="", node="first second", user="node", last="user",
    )  # fmt: skip
    assert sources(graph)["node"] == place


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("model.layers.0.self_attn", 0),
        ("transformer.h.11", 11),
        ("model.layers.3.mlp.experts.7", 3),
        ("model.rotary_emb", None),
        ("conv2d", None),
        ("", None),
    ],
)
def test_the_layer_is_the_first_number_of_a_path(path: str, layer: int | None) -> None:
    assert layer_of(path) == layer


@pytest.mark.parametrize(
    ("path", "prefix", "expected"),
    [
        ("model.lm_head", "model", "lm_head"),
        ("model", "model", ""),
        ("modelling.x", "model", "modelling.x"),
        ("a.b", "", "a.b"),
    ],
)
def test_a_wrapper_is_taken_off_the_path(path: str, prefix: str, expected: str) -> None:
    assert strip_prefix(path, prefix) == expected
