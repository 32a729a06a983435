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
        triggers = list(each.triggers)
        if each.is_finding:
            changed = [each.setting.differs_in(other) for other in equal]
            alone = {names[0]: None for names in changed if len(names) == 1}
            order = ["world", "engine", *each.setting.options]
            triggers += sorted(alone, key=order.index)
        found.append(msgspec.structs.replace(each, triggers=tuple(triggers)))
    return found
