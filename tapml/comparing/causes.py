"""What several comparisons found, each thing counted once: unique inconsistencies and causes.

A unique inconsistency is one pattern of distances of one model (CRADLE, section III-B): pairs and
versions that show the same pattern show the same inconsistency. A cause is what the paper's authors
made of them by hand, "based on the first localized function executions": everything that starts in
the same kind of layer on the same backend, or fails at the same line of code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, TypeAlias

from tapml.comparing.result import NOT_FAULTS, decade

Document: TypeAlias = Mapping[str, Any]
"""A comparison as plain data: ``Comparison.to_json()``, or a ``result.json`` that was read."""
_MOST: Final = 0.5
Pattern: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Found:
    """One pair of one model."""

    model: str
    backends: tuple[str, str]
    layer: str
    decade: int | None
    """Of the first guilty node's deviation over its scale; None where nothing was measured."""
    inputs: str = ""
    """Which instances trigger: ``all``, ``most`` or ``some``; empty where nothing was compared."""


@dataclass(frozen=True)
class Cause:
    """What differs or fails in one way.

    Attributes
    ----------
    status
        As of a pair.
    layer_kind
        Of the first guilty nodes; empty where no layer was found.
    backend
        The blamed one, or both of a pair that has no majority.
    place
        The line of code of a failure; empty for an inconsistency.
    found
        Where it was found, in order.
    """

    status: str
    layer_kind: str
    backend: str
    place: str
    found: tuple[Found, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        decades = sorted({each.decade for each in self.found if each.decade is not None})
        return {
            "status": self.status,
            "layer_kind": self.layer_kind or None,
            "backend": self.backend,
            "place": self.place or None,
            "models": sorted({each.model for each in self.found}),
            "layers": sorted({each.layer for each in self.found if each.layer}),
            "pairs": sorted({each.backends for each in self.found}),
            "relative_deviation": [f"1e{each}" for each in decades],
            "clusters": self._clusters(),
        }

    def _clusters(self) -> list[dict[str, Any]]:
        """By the decade of the deviation and by which instances trigger."""
        groups: dict[tuple[int | None, str], list[Found]] = {}
        for each in self.found:
            groups.setdefault((each.decade, each.inputs), []).append(each)
        return [
            {
                "relative_deviation": None if power is None else f"1e{power}",
                "inputs": inputs or None,
                "models": sorted({each.model for each in some}),
                "pairs": len(some),
            }
            for (power, inputs), some in sorted(groups.items(), key=lambda each: -len(each[1]))
        ]

    def __str__(self) -> str:
        """In a line."""
        where = f" in {self.layer_kind}" if self.layer_kind else ""
        pairs = len({each.backends for each in self.found})
        return f"{self.status}{where}, {self.backend}: {pairs} pair{'s' if pairs > 1 else ''}"


def faults(document: Document) -> list[Document]:
    """The pairs of a comparison that accuse a backend, or two."""
    return [each for each in document["pairs"] if each["status"] not in NOT_FAULTS]


def pattern_of(pair: Document) -> Pattern:
    """The distribution of a pair's distances (table I), or its failure."""
    found = pair["metrics"]
    if not found:
        return pair["status"], pair["reason"]
    patterns = [tuple(found[name]["pattern"].values()) for name in ("D_CLASS", "D_MAD")
                if name in found]  # fmt: skip
    return pair["status"], *patterns, found["elementwise"]["triggering"]


def unique_inconsistencies(documents: Iterable[Document]) -> set[tuple[str, Pattern]]:
    """The patterns of each model, over all pairs that are at fault."""
    return {(each["model"], pattern_of(pair)) for each in documents for pair in faults(each)}


def causes(documents: Sequence[Document]) -> list[Cause]:
    """What is behind all faults, the most frequent first."""
    groups: dict[tuple[str, str, str, str], list[Found]] = {}
    backends: dict[tuple[str, str, str, str], set[str]] = {}
    for document in documents:
        places = {
            each["name"]: each["failure"]["place"]
            for each in document["backends"]
            if each["failure"]
        }
        for pair in faults(document):
            failed = [name for name in pair["backends"] if name in places]
            own = failed or ([pair["blamed"]] if pair["blamed"] else sorted(pair["backends"]))
            # What fails at one line of code is one cause, whichever backends come there.
            place = " and ".join(sorted({places[name] for name in failed}))
            key = pair["status"], pair["layer_kind"] or "", "" if failed else " / ".join(own), place
            backends.setdefault(key, set()).update(own)
            groups.setdefault(key, []).append(
                Found(
                    document["model"],
                    tuple(pair["backends"]),
                    pair["layer"] or "",
                    _decade(pair),
                    _inputs(pair),
                )
            )
    found = [
        Cause(status, kind, " / ".join(sorted(backends[key])), place, tuple(groups[key]))
        for key in groups
        for status, kind, _, place in [key]
    ]
    return sorted(found, key=lambda each: -len(each.found))


def _decade(pair: Document) -> int | None:
    for node in pair["nodes"]:
        if node["name"] == pair["layer"]:
            # JSON has no infinity: anything but a float stands for NaN or another shape.
            deviation = inf if not isinstance(node["deviation"], float) else node["deviation"]
            return decade(deviation, node["scale"])
    return None


def _inputs(pair: Document) -> str:
    share = pair["metrics"].get("share")
    if share is None:
        return ""
    return "all" if share == 1 else "most" if share >= _MOST else "some"
