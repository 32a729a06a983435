"""The operators' definitions that replay needs, so that it does not need the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from tapml.plan import format as plan_format
from tapml.plan.graph_plan import GraphPlan, Operator
from tapml.suite.index import pack, unpack
from tapml_targets.errors import InputError
from tapml_targets.library import Role


@dataclass(frozen=True)
class PackedPlan:
    """A plan's hash, and its operators without entries and weights."""

    plan: GraphPlan
    plan_hash: str
    operators: bytes


_last: list[PackedPlan] = []


def pack_plan(plan: GraphPlan) -> PackedPlan:
    """Pack a plan; caches the last one, because a session carves one plan many times."""
    if not _last or _last[0].plan is not plan:
        operators = GraphPlan(
            plan.name, plan.operators, entries={}, weights={}, state={}, metadata={}
        )
        _last[:] = [
            PackedPlan(
                plan,
                plan_format.plan_hash(plan),
                plan_format.pack(operators),
            )
        ]
    return _last[0]


def unpack_operators(blob: bytes) -> dict[str, Operator]:
    """Unpack the operators of :func:`pack_plan`; raises ProtocolError for another version."""
    return dict(plan_format.unpack(blob).operators)


def pack_parameters(operator: Operator) -> bytes:
    """Names and roles of an operator's parameters."""
    return pack([(parameter.name, parameter.role) for parameter in operator.parameters])


def unpack_parameters(blob: bytes) -> tuple[tuple[str, Role], ...]:
    """Unpack the parameters of :func:`pack_parameters`."""
    parameters = unpack(blob)
    if not all(
        len(parameter) == 2 and parameter[1] in ("input", "output") for parameter in parameters
    ):
        raise InputError("the suite's index is damaged (parameters); carve again")
    return cast("tuple[tuple[str, Role], ...]", parameters)


def check_roles(operators: Mapping[str, Operator]) -> None:
    """Refuse operators that overwrite their inputs, which could not be carved.

    Raises
    ------
    InputError
        Naming the operator and the parameter.
    """
    for operator in operators.values():
        for parameter in operator.parameters:
            if parameter.role == "inout":
                raise InputError(
                    f"operator {operator.name} overwrites its parameter {parameter.name}, so its "
                    "input cannot be carved: import the model with in-place updates turned into "
                    "new tensors"
                )
