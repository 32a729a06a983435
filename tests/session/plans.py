"""Small plans to draw: a decoder of any depth, and one with names that mean harm."""

from __future__ import annotations

from typing import Final

from tapml.plan.graph_plan import (
    CallStep,
    Entry,
    GraphPlan,
    Operator,
    Origin,
    Step,
    Storage,
    Value,
    ViewStep,
)
from tapml_targets.library import Parameter

HOSTILE: Final = "</script><img src=x onerror=alert(1)>\"'&$title"


def operator(name: str, reads: int) -> Operator:
    """Reads so many vectors and writes one."""
    tensors = [Parameter(f"in{index}", (4,), "float32", "input") for index in range(reads)]
    return Operator(
        name=name,
        hash="0",
        parameters=(*tensors, Parameter("out", (4,), "float32", "output")),
        symbols=(),
        function="",
        script="",
        output_kinds=("value",),
    )


def value(name: str, storage: str | None = None) -> Value:
    return Value(name, storage or name, 0, (4,), "float32")


def chain(length: int) -> GraphPlan:
    """Call sites that each read the one before."""
    values = {f"x{index}": value(f"x{index}") for index in range(length + 1)}
    storages = {name: Storage(name, 16, "activation") for name in values}
    steps = tuple(CallStep(f"e/{n}", "step", (f"x{n}", f"x{n + 1}")) for n in range(length))
    entry = Entry("e", (), ("x0",), (f"x{length}",), (), values, storages, steps)
    return GraphPlan("chain", {"step": operator("step", 1)}, {"e": entry}, {}, {})


def decoder(layers: int, *, name: str = "decoder", hostile: str = "") -> GraphPlan:
    """Embedding; per layer a norm that branches into two and joins again; a head.

    Every layer's join is read through a view, as reshapes make them.
    """
    one, two = f"norm{hostile}", f"join{hostile}"
    operators = {each.name: each for each in (operator(one, 1), operator(two, 2))}
    origin = Origin(f"layers{hostile}", f"model{hostile}.py:1", f"aten{hostile}", "n")

    def norm(layer: int) -> Origin:
        return Origin(f"layers.{layer}.norm{hostile}", "norm.py:7", "aten.mean", f"n{layer}")

    names = ["input"]
    steps: list[Step] = [CallStep("e/embed", one, ("input", "x0"), origins=(origin,))]
    for layer in range(layers):
        at, place = f"x{layer}", f"e/layer{layer}"
        steps += [
            CallStep(f"{place}/norm", one, (at, f"n{layer}"), origins=(norm(layer),), layer=layer),
            CallStep(f"{place}/left", one, (f"n{layer}", f"l{layer}"), layer=layer),
            CallStep(f"{place}/right", one, (f"n{layer}", f"r{layer}"), layer=layer),
            # Belongs to no layer, yet stands inside one: a helper the trace did not place.
            CallStep(f"{place}/join", two, (f"l{layer}", f"r{layer}", f"j{layer}")),
            CallStep(f"{place}/last", one, (f"j{layer}", f"y{layer}"), layer=layer),
            ViewStep(f"y{layer}", f"x{layer + 1}"),
        ]
        names += [f"x{layer}", *(f"{kind}{layer}" for kind in "nlrjy")]
    steps.append(CallStep("e/head", one, (f"x{layers}", "out")))
    names.append("out")
    values = {each: value(each) for each in names}
    last = f"x{layers}"
    values[last] = value(last, f"y{layers - 1}" if layers else last)
    storages = {each.storage: Storage(each.storage, 16, "activation") for each in values.values()}
    entry = Entry("e", (), ("input",), ("out",), (), values, storages, tuple(steps))
    return GraphPlan(name, operators, {"e": entry}, {}, {})
