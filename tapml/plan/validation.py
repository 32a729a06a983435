"""Invariants of a plan, checked after import and after reading one from disk."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tapml.plan.graph_plan import Body, CallStep, Entry, GraphPlan, Operator, ViewStep
from tapml.plan.torch_subgraph import check_subgraph
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression, from_wire, symbols_of

_LONGEST_NAME: Final = 128
_FOLDER_NAME: Final = re.compile(rf"(?!\.)[\w.+$@-]{{1,{_LONGEST_NAME}}}")


def check_plan(plan: GraphPlan) -> None:
    """Check all invariants of a plan.

    Every value is defined before it is used, lies in an existing storage, and is written once;
    calls match their operators; entries agree with the plan's weights and state; donated pairs are
    a state's old and new value; shapes use only known symbols.

    Raises
    ------
    InputError
            Naming the entry, the step and what is wrong.
    ProtocolError
        If an extent is no expression.
    """
    for name, operator in plan.operators.items():
        _require(operator.name == name, f"operator {name!r} has the name {operator.name!r}")
        _check_operator(operator)
    for name, entry in plan.entries.items():
        _require(entry.name == name, f"entry {name!r} has the name {entry.name!r}")
        _check_entry(entry, plan.operators)
        _check_shared(entry, plan)
    for name, tensor in (*plan.weights.items(), *plan.state.items()):
        _require(tensor.name == name, f"tensor {name!r} calls itself {tensor.name!r}")
    sites = [call.site for entry in plan.entries.values() for call in entry.calls]
    _require(len(set(sites)) == len(sites), "two call sites have the same name")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(f"not a valid plan: {message}")


def _check_operator(operator: Operator) -> None:
    what = f"operator {operator.name!r}"
    _require(
        _FOLDER_NAME.fullmatch(operator.name) is not None,
        f"{what}: the name is also a folder name: it must have at most {_LONGEST_NAME} "
        "characters, only letters, digits and _ - + . $ @, and must not begin with a dot",
    )
    names = [parameter.name for parameter in operator.parameters]
    _require(len(set(names)) == len(names), f"{what} has two parameters with the same name")
    _require(
        len(operator.output_kinds) == len(operator.written),
        f"{what} writes {len(operator.written)} tensors but has {len(operator.output_kinds)} kinds",
    )
    for parameter in operator.parameters:
        dtype(parameter.dtype)
        for extent in parameter.shape:
            from_wire(extent)
    for form in operator.torch_forms:
        if form.subgraph is not None:
            check_subgraph(form.subgraph, operator.parameters)
    if operator.body is not None:
        _check_body(operator, operator.body)


def _check_body(operator: Operator, body: Body) -> None:
    what = f"body of {operator.name!r}"
    _require(
        body.entry.inputs == tuple(p.name for p in operator.read),
        f"the {what} takes {body.entry.inputs}",
    )
    _require(
        body.entry.outputs == tuple(p.name for p in operator.written),
        f"the {what} gives {body.entry.outputs}",
    )
    for name, inner in body.operators.items():
        _require(inner.name == name, f"the {what} has {inner.name!r} under the name {name!r}")
        _require(inner.body is None, f"the {what} holds a fused operator, {inner.name!r}")
        _check_operator(inner)
    _check_entry(body.entry, body.operators)


def _check_entry(entry: Entry, operators: dict[str, Operator]) -> None:
    what = f"entry {entry.name!r}"
    known = frozenset(entry.symbols)
    for name, storage in entry.storages.items():
        _require(storage.name == name, f"{what}: storage {name!r} has the name {storage.name!r}")
        _known(storage.nbytes, known, f"{what}: storage {name!r}")
    for name, value in entry.values.items():
        _require(value.name == name, f"{what}: value {name!r} has the name {value.name!r}")
        _require(value.storage in entry.storages, f"{what}: value {name!r} has no storage")
        dtype(value.dtype)
        for extent in (value.byte_offset, *value.shape):
            _known(extent, known, f"{what}: value {name!r}")
    defined = {
        name
        for name, value in entry.values.items()
        if entry.storages[value.storage].lifetime != "activation" and name == value.storage
    }
    for step in entry.steps:
        if isinstance(step, ViewStep):
            _check_view(step, entry, defined, what)
        else:
            _check_call(step, entry, operators, defined, what)
    ends = (*entry.inputs, *entry.outputs)
    for name in (*ends, *(n for b in entry.state for n in (b.before, b.after))):
        _require(name in defined, f"{what}: {name!r} is never defined")


def _known(extent: Expression, known: frozenset[str], what: str) -> None:
    unknown = symbols_of(from_wire(extent)) - known
    _require(not unknown, f"{what} uses unknown symbols: {', '.join(sorted(unknown))}")


def _check_view(step: ViewStep, entry: Entry, defined: set[str], what: str) -> None:
    _require(step.source in defined, f"{what}: the view {step.result!r} has an undefined source")
    _require(step.result in entry.values, f"{what}: the view {step.result!r} is not a value")
    _require(step.result not in defined, f"{what}: {step.result!r} is defined twice")
    source, result = entry.values[step.source], entry.values[step.result]
    _require(
        (source.storage, source.byte_offset, source.dtype)
        == (result.storage, result.byte_offset, result.dtype),
        f"{what}: the view {step.result!r} does not share the memory of {step.source!r}",
    )
    defined.add(step.result)


def _check_call(
    call: CallStep, entry: Entry, operators: dict[str, Operator], defined: set[str], what: str
) -> None:
    what = f"{what}, call {call.site!r}"
    _require(call.operator in operators, f"{what}: there is no operator {call.operator!r}")
    operator = operators[call.operator]
    _require(
        len(call.arguments) == len(operator.parameters),
        f"{what}: {len(call.arguments)} arguments for {len(operator.parameters)} parameters",
    )
    _require(
        tuple(name for name, _ in call.symbols) == operator.symbols,
        f"{what}: passes the symbols {call.symbols}, expected {operator.symbols}",
    )
    _all_known((value for _, value in call.symbols), entry, what)
    written = []
    for name, parameter in zip(call.arguments, operator.parameters, strict=True):
        _require(name in entry.values, f"{what}: {name!r} is not a value")
        value = entry.values[name]
        _require(
            value.dtype == parameter.dtype and len(value.shape) == len(parameter.shape),
            f"{what}: {name!r} is {value.dtype} of rank {len(value.shape)}, parameter "
            f"{parameter.name!r} is {parameter.dtype} of rank {len(parameter.shape)}",
        )
        if parameter.role == "input":
            _require(name in defined, f"{what}: reads {name!r} before it is defined")
        else:
            _require(name not in defined, f"{what}: writes {name!r}, which is already defined")
            _require(
                entry.storages[value.storage].lifetime == "activation",
                f"{what}: writes {name!r}, which is not an activation",
            )
            written.append(name)
    states = {(binding.before, binding.after) for binding in entry.state}
    for pair in call.donates:
        _require(
            pair in states and pair[0] in call.arguments and pair[1] in written,
            f"{what}: donates {pair}, which are not a state's old and new value",
        )
    defined.update(written)


def _all_known(extents: Iterable[Expression], entry: Entry, what: str) -> None:
    for extent in extents:
        _known(extent, frozenset(entry.symbols), what)


def _check_shared(entry: Entry, plan: GraphPlan) -> None:
    for name, storage in entry.storages.items():
        if storage.lifetime not in {"weight", "state"}:
            continue
        table = plan.weights if storage.lifetime == "weight" else plan.state
        _require(name in table, f"entry {entry.name!r}: {storage.lifetime} {name!r} is not listed")
        specification, value = table[name], entry.values[name]
        _require(
            (specification.shape, specification.dtype) == (value.shape, value.dtype),
            f"entry {entry.name!r}: {name!r} is {value.dtype} {value.shape}, the plan lists "
            f"{specification.dtype} {specification.shape}",
        )
    for binding in entry.state:
        before, after = entry.values[binding.before], entry.values[binding.after]
        _require(
            (before.shape, before.dtype) == (after.shape, after.dtype),
            f"entry {entry.name!r}: state {binding.state!r} changes its shape or dtype",
        )
