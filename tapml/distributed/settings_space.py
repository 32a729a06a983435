"""Every combination of an engine's parameters: which are valid, and which can run here (D3, III-C).

A combination that a named rule prunes is never run by a check; an audit runs it all the same, to
see whether the library still refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from tapml.distributed.engine import Engine, Rule, Traits
from tapml.distributed.results import Setting
from tapml_targets.errors import InputError

WORLDS: Final = (1, 2, 3, 4, 8)
"""The paper's (table I)."""


@dataclass(frozen=True)
class Candidate:
    """A combination.

    Attributes
    ----------
    setting
        The combination.
    rule
        What prunes it; None if it is valid.
    missing
        What this machine lacks for it; empty if nothing.
    """

    setting: Setting
    rule: Rule | None
    missing: str

    @property
    def runs(self) -> bool:
        """Whether it is valid and can run here."""
        return self.rule is None and not self.missing


def candidates(
    engine: Engine,
    worlds: Iterable[int] = WORLDS,
    asked: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Candidate]:
    """Every combination of the worlds and the engine's parameters.

    `asked` narrows some of them; one without values is left out: the library's default holds.
    """
    library = engine.settings
    narrowed = {name: (asked or {}).get(name, values) for name, values in library.OPTIONS.items()}
    names = [name for name, values in narrowed.items() if values]
    values = [narrowed[name] for name in names]
    found = []
    for chosen in product(*values):
        for world in worlds:
            options = dict(zip(names, chosen, strict=True))
            setting = Setting(engine=engine.name, world=world, options=options)
            rule = next((each for each in library.RULES if each.prunes(setting)), None)
            found.append(Candidate(setting, rule, library.missing(setting)))
    return found


def candidates_here(engine: Engine) -> list[Setting]:
    """The valid settings of one rank that can run on this machine."""
    return [each.setting for each in candidates(engine, worlds=(1,)) if each.runs]


def neighbours(engine: Engine, setting: Setting, worlds: Iterable[int]) -> list[Setting]:
    """The valid settings that can run here and differ from one in a single parameter."""
    library = engine.settings
    flipped = [
        Setting(engine=engine.name, world=world, options=setting.options)
        for world in worlds
        if world != setting.world
    ]
    for name, values in library.OPTIONS.items():
        for value in values:
            if value != setting.options.get(name):
                chosen = {**setting.options, name: value}
                options = {each: chosen[each] for each in library.OPTIONS if each in chosen}
                flipped.append(Setting(engine=engine.name, world=setting.world, options=options))
    # A rule reads all parameters; one that was not chosen has the library's value, which is valid.
    return [
        each
        for each in flipped
        if not library.missing(each) and not any(_prunes(rule, each) for rule in library.RULES)
    ]


def _prunes(rule: Rule, setting: Setting) -> bool:
    try:
        return rule.prunes(setting)
    except KeyError:
        return False


def settings_of(
    engine: Engine,
    worlds: Iterable[int],
    asked: Mapping[str, tuple[str, ...]],
    *,
    pruned: bool = False,
    traits: Traits | None = None,
) -> list[Setting]:
    """The valid settings to run: those that can run here, else those that cannot, to be told why.

    With `pruned`, those that rules prune and nothing is missing for. With `traits`, parameters that
    were not asked for have the engine's usual values for such a job.

    Raises
    ------
    InputError
        If all combinations are pruned; with `pruned`, if none is.
    """
    usual = getattr(engine.settings, "usual", None)
    if usual is not None and traits is not None and not pruned:
        asked = {**usual(traits), **asked}
    found = candidates(engine, worlds, asked)
    if pruned:
        out = [each.setting for each in found if each.rule is not None and not each.missing]
        if not out:
            raise InputError(f"no rule prunes a setting of {engine.name} that can run here")
        return out
    valid = [each for each in found if each.rule is None]
    if not valid:
        rule = found[0].rule
        reason = "" if rule is None else f": {rule.reason} ({rule.name})"
        raise InputError(f"{engine.name} has no valid setting with these values{reason}")
    here = [each.setting for each in valid if not each.missing]
    return here or [each.setting for each in valid]


def check_options(engines: Sequence[Engine], asked: Mapping[str, tuple[str, ...]]) -> None:
    """Raise InputError if no engine has a parameter of that name, or none knows a value."""
    for name, values in asked.items():
        known = {
            value: None for engine in engines for value in engine.settings.OPTIONS.get(name, ())
        }
        if not known:
            names = sorted({each for engine in engines for each in engine.settings.OPTIONS})
            raise InputError(
                f"the engines have no parameter {name!r}; "
                + (f"known: {', '.join(names)}" if names else "choose one that has with --engine")
            )
        for value in values:
            if value not in known:
                raise InputError(f"{name} can be {', '.join(known)}; got {value!r}")
