"""Inconsistency-triggering parameters (section V-A): changed alone, they change the outcome."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tapml.distributed.results import Outcome, RunResult


def with_triggers(results: Sequence[RunResult]) -> list[RunResult]:
    """The results with the parameters of the setting among their triggers.

    A parameter triggers a finding if a setting that differs in it alone is equal.
    """
    equal = [each.setting for each in results if each.outcome is Outcome.EQUAL]
    found = []
    for each in results:
        mine = each.setting
        triggers = list(each.triggers)
        if each.is_finding:
            if any(other.engine == mine.engine for other in equal):
                triggers.append("world")
            if any(other.world == mine.world for other in equal):
                triggers.append("engine")
        found.append(msgspec.structs.replace(each, triggers=tuple(triggers)))
    return found
