"""Which of all possible mutants are made: a fixed draw, even over kinds and operators."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from scripts.mutants.kinds import KINDS
from scripts.mutants.site import Site
from scripts.mutants.text_kinds import WAVE


@dataclass(frozen=True)
class Mutant:
    """One mistake in one operator's Library."""

    name: str
    operator: str
    site: Site


def each_and_drawn(
    sites: Mapping[str, Mapping[str, list[Site]]], each: Collection[str], count: int, seed: int
) -> tuple[Mutant, ...]:
    """A mutant of each site of the kinds `each`, and `count` drawn of the other kinds."""
    places = [
        (operator, site)
        for operator, kinds in sites.items()
        for kind in kinds
        if kind in each
        for site in kinds[kind]
    ]
    others = {
        operator: {kind: found for kind, found in kinds.items() if kind not in each}
        for operator, kinds in sites.items()
    }
    places += [(mutant.operator, mutant.site) for mutant in draw(others, count, seed)]
    return tuple(Mutant(f"m{n:03}", operator, site) for n, (operator, site) in enumerate(places))


def draw(
    sites: Mapping[str, Mapping[str, list[Site]]], count: int, seed: int
) -> tuple[Mutant, ...]:
    """Draw `count` mutants, as many of each kind as its sites allow.

    Kinds take turns. Each time the operator with the fewest mutants so far that still has a site of
    the kind is taken, then one of the rules that have been used least there, then a site at random.
    Kinds with few sites leave their share to the others.

    Parameters
    ----------
    sites
        Per operator and kind all sites.
    count
        How many; fewer where there are not so many sites.
    seed
        The same seed draws the same mutants.
    """
    chance = random.Random(seed)  # noqa: S311 - a draw, no secret
    left = {(o, k): list(found) for o, kinds in sites.items() for k, found in kinds.items()}
    per_operator: Counter[str] = Counter()
    per_kind: Counter[tuple[str, str]] = Counter()
    rules: Counter[tuple[str, str]] = Counter()
    drawn: list[Mutant] = []
    kinds = [kind for kind in (*KINDS, WAVE) if any(kind in found for found in sites.values())]
    while len(drawn) < count and kinds:
        for kind in list(kinds):
            operators = [o for o in sites if left.get((o, kind))]
            if not operators:
                kinds.remove(kind)
                continue
            if len(drawn) == count:
                break
            # Of one kind an operator gets another only when all others have one.
            operator = min(
                operators,
                key=lambda o: (per_kind[o, kind], per_operator[o], chance.random()),
            )
            open_sites = left[operator, kind]
            rule = min({s.rule for s in open_sites}, key=lambda r: (rules[kind, r], r))
            site = chance.choice([s for s in open_sites if s.rule == rule])
            open_sites.remove(site)
            per_operator[operator] += 1
            per_kind[operator, kind] += 1
            rules[kind, rule] += 1
            drawn.append(Mutant(f"m{len(drawn):03}", operator, site))
    return tuple(drawn)
