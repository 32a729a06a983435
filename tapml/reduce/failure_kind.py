"""What kind of failure a verdict speaks of: a smaller one must be of the same kind."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from tapml.compare.verdict import Verdict, worse

Kind: TypeAlias = Literal[
    "refused call",
    "write outside",
    "changed input",
    "unwritten output",
    "read outside",
    "stale read",
    "nondeterminism",
    "NaN",
    "Inf",
    "wrong values",
    "wrong integers",
    "imprecision",
]

# What the memory checks of a replay say (:mod:`tapml.carving.replay`), gravest first.
_FINDINGS: Final[tuple[tuple[str, Kind], ...]] = (
    ("bytes outside its outputs", "write outside"),
    ("outside its workspaces", "write outside"),
    ("wrote around its inputs", "write outside"),
    ("bytes of its input", "changed input"),
    ("which it may only read", "changed input"),
    ("were never written", "unwritten output"),
    ("change with what lies around its inputs", "read outside"),
    ("change with what its outputs and workspaces held", "stale read"),
    ("differ between", "nondeterminism"),
)
_REFUSED: Final = "the device refused the call"
_ORDER: Final[tuple[Kind, ...]] = (
    "refused call",
    "write outside",
    "changed input",
    "unwritten output",
    "read outside",
    "stale read",
    "nondeterminism",
    "NaN",
    "Inf",
    "wrong integers",
    "wrong values",
    "imprecision",
)


def kinds_of(verdict: Verdict) -> tuple[Kind, ...]:
    """The kinds of failure in a verdict, gravest first; none for a pass."""
    if verdict.status in ("pass", "not run"):
        return ()
    found: set[Kind] = set()
    if verdict.reason.startswith(_REFUSED):
        found.add("refused call")
    for finding in verdict.findings:
        found.update(kind for words, kind in _FINDINGS if words in finding)
    for output in verdict.outputs:
        if output.status == "pass":
            continue
        if output.nan_mismatches:
            found.add("NaN")
        if output.infinity_mismatches:
            found.add("Inf")
        # What is NaN or Inf on one side only counts as beyond the limit, too.
        if output.over <= output.nan_mismatches + output.infinity_mismatches:
            continue
        if "float" not in output.dtype:
            found.add("wrong integers")
        elif output.status == "degraded":
            found.add("imprecision")
        else:
            found.add("wrong values")
    return tuple(kind for kind in _ORDER if kind in found)


def same_failure(first: Verdict, second: Verdict) -> bool:
    """Whether `second` fails at least as gravely as `first` and shows its gravest kind."""
    kinds = kinds_of(first)
    if not kinds or worse(first.status, second.status) != second.status:
        return False
    others = kinds_of(second)
    # What was imprecise and is now wrong is the same fault, seen better.
    return kinds[0] in others or (kinds[0] == "imprecision" and "wrong values" in others)
