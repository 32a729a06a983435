"""Which operators a run migrates, in which order, and why the others stay on the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.plan.graph_plan import GraphPlan
    from tapml.session.settings import Order, RunOptions

_NEAR: Final = 4
_NEAR_ENOUGH: Final = 0.4


def check_patterns(plan: GraphPlan, options: RunOptions) -> None:
    """Refuse patterns that match no operator of the plan.

    Raises
    ------
    InputError
        With the option, the pattern and operators of similar names.
    """
    for option, patterns in (
        ("--only", options.only),
        ("--keep-on-source", options.keep_on_source),
    ):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in plan.operators):
                raise InputError(
                    f"{option} {pattern!r} matches no operator; {_near(plan, pattern)}"
                )


def why_kept(name: str, options: RunOptions) -> str:
    """Why an operator stays on the source; empty if it is to migrate."""
    kept = next((p for p in options.keep_on_source if fnmatchcase(name, p)), None)
    if kept is not None:
        return f"kept on the source by {kept!r}"
    if options.only and not any(fnmatchcase(name, pattern) for pattern in options.only):
        return f"kept on the source: not among {', '.join(map(repr, options.only))}"
    return ""


def in_order(plan: GraphPlan, order: Order) -> tuple[str, ...]:
    """Names of the plan's operators in the order of their migration.

    Every order is valid, because operators are tested separately and the hybrid graph runs any
    placement. ``call-sites`` sorts by descending number of call sites, ties as in the graph.
    """
    names = tuple(plan.operators)
    if order == "reverse":
        return names[::-1]
    if order == "call-sites":
        sites = Counter(call.operator for entry in plan.entries.values() for call in entry.calls)
        return tuple(sorted(names, key=lambda name: -sites[name]))
    return names


def near_names(names: Iterable[str], word: str) -> list[str]:
    """Operator names similar to `word`, else names that contain it.

    >>> near_names(["fused_matmul", "rms_norm"], "norm")
    ['rms_norm']
    """
    names = list(names)
    return (
        get_close_matches(word, names, _NEAR, _NEAR_ENOUGH)
        or [name for name in names if word and word.lower() in name.lower()][:_NEAR]
    )


def _near(plan: GraphPlan, pattern: str) -> str:
    names = list(plan.operators)
    near = near_names(names, pattern.strip("*?"))
    if not near:
        return f"the plan has {len(names)}: {', '.join(names[:_NEAR])}, ..."
    return f"similar names: {', '.join(near)}"
