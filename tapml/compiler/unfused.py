"""An operator as the sequence of its body's steps, without fusion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from tapml.compiler.link import link_entries
from tapml.plan.graph_plan import CallStep, GraphPlan, Operator
from tapml_targets.errors import CompileError
from tapml_targets.library import EntryProgram, Library


def is_fused(operator: Operator) -> bool:
    """Whether an operator has a body of more than one step."""
    return operator.body is not None and len(operator.body.entry.calls) > 1


def unfused(operator: Operator, compile_one: Callable[[Operator], Library]) -> Library:
    """A Library with an entry that runs an operator's steps, with its name and parameters.

    Each step is compiled and launched separately; intermediates are stored in device memory. The
    entry is called and replayed like the operator.

    Raises
    ------
    CompileError
        If the operator has no body, a step does not compile, or the steps cannot form one call: an
        output that is also read, or that no step writes.
    """
    body = operator.body
    if body is None:
        raise CompileError(f"operator {operator.name!r} is a single step: it has no body")
    inner = {
        # The entry has the operator's name, which no step may have.
        f"{operator.name}/{name}": _renamed(compile_one(step), name, f"{operator.name}/{name}")
        for name, step in body.operators.items()
    }
    steps = tuple(
        structs.replace(step, operator=f"{operator.name}/{step.operator}")
        if isinstance(step, CallStep)
        else step
        for step in body.entry.steps
    )
    entry = replace(body.entry, name=operator.name, steps=steps)
    operators = {f"{operator.name}/{name}": step for name, step in body.operators.items()}
    plan = GraphPlan(operator.name, operators, {operator.name: entry}, {}, {})
    linked = link_entries(plan, inner)
    program = _as_called(linked.entries[operator.name], operator)
    return replace(linked, entries={operator.name: program})


def _renamed(library: Library, name: str, new: str) -> Library:
    program = structs.replace(library.operators[name], name=new)
    return replace(library, operators={new: program})


def _as_called(program: EntryProgram, operator: Operator) -> EntryProgram:
    """The entry with the operator's parameter names and order."""
    prefixes = {"input": "input:", "output": "output:"}
    names = {
        f"{prefixes[p.role]}{p.name}": p.name for p in operator.parameters if p.role in prefixes
    }
    given = {names[p.name]: p for p in program.parameters if p.name in names}
    if len(given) != len(operator.parameters) or len(names) != len(program.parameters):
        raise CompileError(
            f"operator {operator.name!r}: its body does not read and write each of its parameters "
            "once, so its steps cannot take its place"
        )
    values = tuple(
        structs.replace(v, storage=names.get(v.storage, v.storage)) for v in program.values
    )
    parameters = tuple(structs.replace(given[p.name], name=p.name) for p in operator.parameters)
    return structs.replace(program, parameters=parameters, values=values)
