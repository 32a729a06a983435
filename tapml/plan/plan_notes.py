"""Notes for the people who run a plan."""

from __future__ import annotations

from typing import Final

from tapml.plan.graph_plan import GraphPlan

BRANCHES: Final = "branches"
"""Of a plan's metadata: lines whose branches are those of the example inputs."""


def notes_of(plan: GraphPlan) -> tuple[str, ...]:
    """Sentences for a user; of most plans none."""
    lines = plan.metadata.get(BRANCHES)
    if not lines:
        return ()
    return (
        f"the branches at {lines} depend on numbers and are those that the example inputs take: "
        "where a run would take another, its outputs of floats are NaN, and no other counts",
    )
