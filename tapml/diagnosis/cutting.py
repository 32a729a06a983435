"""Cuts operators out of an operator: a single step, or the steps up to one.

The blocks are TVM's own, unchanged; only the beginning and end of the function are new. The result
is an ordinary operator: compiled for the target and for the CPU, replayed and judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from tapml.diagnosis.reading import ReadOperator
from tapml.importing.function_text import structural_hash, to_json, to_script, with_parameter_names
from tapml.importing.symbolic import dtype_name, shape_of
from tapml.plan.graph_plan import Operator, OutputKind
from tapml_targets.library import Parameter


@dataclass(frozen=True)
class Cut:
    """An operator cut out of another, and which tensors its parameters are."""

    operator: Operator
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def step_operator(read: ReadOperator, position: int) -> Cut:
    """Step `position` as an operator from the tensors it reads to the one it writes."""
    return _cut(read, f"step_{position + 1}", [position], [position])


def prefix_operator(read: ReadOperator, position: int) -> Cut:
    """The operator up to step `position`, whose tensor is the output, still fused."""
    kept = read.steps.needed(position)
    return _cut(read, f"up_to_{position + 1}", kept, [position])


def opened_operator(read: ReadOperator) -> Cut:
    """The operator with every intermediate tensor as an output, in the order of the steps."""
    everything = range(len(read.sources))
    return _cut(read, "opened", everything, everything)


def _cut(read: ReadOperator, what: str, kept: Sequence[int], outputs: Sequence[int]) -> Cut:
    """The steps `kept` as an operator that writes the tensors of the steps `outputs`."""
    steps = read.steps
    buffers: dict[str, Any] = {}
    for position in kept:
        source, step = read.sources[position], steps.steps[position]
        buffers |= dict(zip(step.reads, source.read, strict=True))
        buffers[step.writes] = source.written
    written = [steps.steps[position].writes for position in outputs]
    made = {steps.steps[position].writes for position in kept}
    reads = [name for name in steps.tensors if name in buffers and name not in made]
    inner = [buffers[name] for name in steps.tensors if name in made and name not in written]
    tensors = [buffers[name] for name in (*reads, *written)]
    statements = [read.sources[position].statement for position in kept]
    body = statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body, None, inner))
    integers = _integers(read, tensors)
    name = f"{read.operator.name}_{what}"
    attributes = tvm.ir.make_node("ir.DictAttrs", **{"tirx.noalias": True, "s_tir": True})
    function = tirx.PrimFunc([*tensors, *integers], root, None, attributes)
    cut = _operator(name, function, reads, written, [str(v.name) for v in integers])
    return Cut(cut, tuple(reads), tuple(written))


def _integers(read: ReadOperator, tensors: Sequence[Any]) -> list[Any]:
    """Variables of the function that no tensor's shape defines."""
    known = {extent for tensor in tensors for extent in tensor.ty.shape if _is_variable(extent)}
    found: dict[Any, None] = {}
    candidates = [
        *(p for p in read.function.params if tvm.ir.is_prim_var(p)),
        *(e for s in read.sources for t in (*s.read, s.written) for e in _variables(t.ty.shape)),
    ]
    for variable in candidates:
        if variable not in known:
            found.setdefault(variable)
    return list(found)


def _is_variable(extent: Any) -> bool:
    return type(extent).__name__ == "Var"


def _variables(extents: Any) -> list[Any]:
    """The variables in expressions of integers."""
    found = []
    pending = list(extents)
    while pending:
        node = pending.pop()
        if _is_variable(node):
            found.append(node)
        pending += [part for part in (getattr(node, "a", None), getattr(node, "b", None)) if part]
    return found


def _operator(
    name: str, function: Any, reads: Sequence[str], written: Sequence[str], symbols: list[str]
) -> Operator:
    names = [_plain(each) for each in (*reads, *written)]
    function = with_parameter_names(function, [*names, *symbols])
    parameters = tuple(
        Parameter(
            each,
            shape_of(variable.ty.shape),
            dtype_name(variable.ty.dtype),
            "input" if index < len(reads) else "output",
        )
        for index, (each, variable) in enumerate(
            zip(names, function.params[: len(names)], strict=True)
        )
    )
    kinds: list[OutputKind] = [
        "predicate" if p.dtype == "bool" else "value" for p in parameters if p.role == "output"
    ]
    return Operator(
        name=name,
        hash=structural_hash(function),
        parameters=parameters,
        symbols=tuple(symbols),
        function=to_json(function, name),
        script=to_script(function, name),
        output_kinds=tuple(kinds),
    )


def _plain(tensor: str) -> str:
    """A tensor's name as a C identifier."""
    return tensor.replace(".", "_")
