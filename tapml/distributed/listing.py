"""All settings of the engines, and whether the rules that prune some of them are still right."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tapml.distributed.checking import check
from tapml.distributed.engine import Engine, engine_packages, find_engine
from tapml.distributed.results import Outcome, RunResult
from tapml.distributed.settings_space import Candidate, candidates, check_options
from tapml.isolate.pool import Pool
from tapml.runs.events import Watcher, ignore


@dataclass(frozen=True)
class Audited:
    """A pruned setting that was run all the same: the name of the rule, and what came of it."""

    rule: str
    result: RunResult

    @property
    def stale(self) -> bool:
        """Whether it is equal to one device: the rule is out of date."""
        return self.result.outcome == Outcome.EQUAL


def engines_named(names: Sequence[str] | None) -> list[Engine]:
    """The engines of these names, or all. Raises InputError if one is unknown."""
    return [find_engine(name) for name in names or engine_packages()]


def settings(
    engines: Sequence[str] | None = None, options: Mapping[str, Sequence[str]] | None = None
) -> list[Candidate]:
    """Every combination of the engines' parameters, each valid, pruned by a rule, or not for here.

    Raises InputError if an engine, a parameter or a value is unknown.
    """
    found, asked = engines_named(engines), _asked(options)
    check_options(found, asked)
    return [each for engine in found for each in candidates(engine, asked=asked)]


def audit(
    job: str | os.PathLike[str],
    engines: Sequence[str] | None = None,
    options: Mapping[str, Sequence[str]] | None = None,
    *,
    watcher: Watcher = ignore,
    pool: Pool | None = None,
) -> list[Audited]:
    """Run a job under the settings that rules prune.

    Raises as :func:`tapml.distributed.check` does.
    """
    names = [each.name for each in engines_named(engines) if each.settings.RULES]
    found = check(
        job, engines=names, options=_asked(options), pruned=True, watcher=watcher, pool=pool
    )
    rules = {name: find_engine(name).settings.RULES for name in names}
    return [
        Audited(
            next(rule.name for rule in rules[each.setting.engine] if rule.prunes(each.setting)),
            each,
        )
        for each in found.results
    ]


def _asked(options: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
    return {name: tuple(values) for name, values in (options or {}).items()}
