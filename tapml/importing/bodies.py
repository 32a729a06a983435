"""The unfused form of a fused operator, from the Relax function it was fused from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs
from tvm import relax

from tapml.importing.flatten import CallSite, Flattener, FunctionTensor
from tapml.importing.lowering import LoweredEntry
from tapml.importing.operators import OperatorTable
from tapml.plan.graph_plan import Body
from tapml.plan.naming import readable
from tapml_targets.errors import UnsupportedOperatorError


class _BodyGuide:
    """Names the values of a body after the small operators that compute them."""

    def site(self, index: int, callee: str) -> CallSite:
        return CallSite(results=(f"{readable(callee)}.",))

    def view(self, variable: str) -> str:
        return "view."


def body_maker(
    lowered: LoweredEntry,
) -> Callable[[str, Sequence[str], Sequence[str]], Body | None]:
    """A function that makes the body of each fused function of an entry."""

    def make(name: str, reads: Sequence[str], writes: Sequence[str]) -> Body | None:
        function = lowered.fused.get(name)
        return None if function is None else _body(lowered, name, function, reads, writes)

    return make


def _body(
    lowered: LoweredEntry, name: str, function: Any, reads: Sequence[str], writes: Sequence[str]
) -> Body:
    tensors = [p for p in function.params if isinstance(p.ty, relax.TensorType)]
    if len(tensors) != len(reads):
        raise UnsupportedOperatorError(
            f"{name}: {len(tensors)} tensors before fusion and {len(reads)} after"
        )
    table = OperatorTable()
    flattener = Flattener(
        readable(name),
        lowered.unfused,
        table,
        _BodyGuide(),
        constant=_no_constant,
        make_body=lambda *_: None,
        variants=lowered.variants,
    )
    named = {
        parameter: FunctionTensor(read, "input")
        for parameter, read in zip(tensors, reads, strict=True)
    }
    entry, outputs = flattener.flatten(function, named, ())
    return Body(table.finish(), _renamed(replace(entry, outputs=outputs), outputs, writes))


def _no_constant(value: Any) -> str:
    raise UnsupportedOperatorError(f"a fused function contains a constant: {value.ty}")


def _renamed(entry: Any, outputs: Sequence[str], writes: Sequence[str]) -> Any:
    """The entry with its outputs renamed to the operator's parameters."""
    names = dict(zip(outputs, writes, strict=True))

    def renamed(name: str) -> str:
        return names.get(name, name)

    values = {
        renamed(value.name): replace(
            value, name=renamed(value.name), storage=renamed(value.storage)
        )
        for value in entry.values.values()
    }
    storages = {
        renamed(storage.name): replace(storage, name=renamed(storage.name))
        for storage in entry.storages.values()
    }
    steps = tuple(
        structs.replace(step, arguments=tuple(renamed(name) for name in step.arguments))
        if hasattr(step, "arguments")
        else structs.replace(step, source=renamed(step.source), result=renamed(step.result))
        for step in entry.steps
    )
    return replace(
        entry,
        values=values,
        storages=storages,
        steps=steps,
        outputs=tuple(renamed(name) for name in outputs),
    )
