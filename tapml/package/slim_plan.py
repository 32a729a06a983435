"""The part of a plan that a run needs: shapes, state and limits, and nothing of how it came about.

The kernels are in the Library. What stays of an operator is its parameters, from which the limits
of a device are told at the longest input.
"""

from __future__ import annotations

from dataclasses import replace

from tapml.graph.plan import CallStep, Entry, GraphPlan, Operator


def slim(plan: GraphPlan) -> GraphPlan:
    """`plan` without functions, bodies, torch forms and origins.

    It runs like `plan` where every operator is compiled, and nothing can be compiled from it.
    """
    return replace(
        plan,
        operators={name: _operator(each) for name, each in plan.operators.items()},
        entries={name: _entry(each) for name, each in plan.entries.items()},
        metadata={},
    )


def _operator(operator: Operator) -> Operator:
    return replace(operator, function="", script="", body=None, variants={}, torch_forms=())


def _entry(entry: Entry) -> Entry:
    steps = (
        replace(step, origins=()) if isinstance(step, CallStep) else step for step in entry.steps
    )
    return replace(entry, steps=tuple(steps))
