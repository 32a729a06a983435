"""Three kinds of mistake in kernels of every language, scored on this machine's devices."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scripts.mutants.checking import open_checking
from scripts.mutants.kinds import sites
from scripts.mutants.sampling import each_and_drawn
from scripts.mutants.scoring import Score, Scorer
from scripts.mutants.subject import Device, open_subject
from scripts.mutants.text_kinds import TEXT_KINDS
from tapml_targets.driver import DeviceDescription

BEGIN: Final = "<!-- languages: written by scripts/score_mutants.py --languages -->"
END: Final = "<!-- end of languages -->"


@dataclass(frozen=True)
class LanguageScore:
    """The mutants of one language.

    Attributes
    ----------
    device, options
        Where they ran, and options of the code generator.
    dialect
        The language of their kernels.
    operators
        How many operators' kernels were made wrong.
    possible
        How many mutants could have been made.
    scores
        One per mutant.
    clean
        What the platform's checker says of right kernels, by operator.
    seconds
        How long it took.
    """

    device: DeviceDescription
    options: tuple[tuple[str, str], ...]
    dialect: str
    operators: int
    possible: int
    scores: tuple[Score, ...]
    clean: dict[str, frozenset[str]]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "device": f"{self.device.name} ({self.device.vendor_platform})",
            "options": dict(self.options),
            "language": self.dialect,
            "operators": self.operators,
            "possible": self.possible,
            "seconds": round(self.seconds, 1),
            "clean": {name: sorted(found) for name, found in self.clean.items()},
            "mutants": [score.to_json() for score in self.scores],
        }


def score_language(
    suite: Path,
    device: DeviceDescription,
    options: tuple[tuple[str, str], ...] = (),
    *,
    operators: int,
    count: int,
    each: Collection[str] = (),
    tests: int,
    seed: int,
    check_seconds: float,
    say: Callable[[str], None],
) -> LanguageScore:
    """Make mutants of a device's kernels, replay them, and show the silent ones to the checker.

    Parameters
    ----------
    suite
        A carved suite.
    device
        Where they run.
    options
        Of the code generator.
    operators, count, tests
        Most operators, mutants that are drawn of all kinds together, and tests of an operator.
    each
        Kinds of which every possible mutant is made; the others are drawn.
    seed
        Of the draw.
    check_seconds
        Time for the checker.
    say
        Called with a line of progress.
    """
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="tapml-mutants-") as cache,
        open_subject(suite, device, per_operator=tests, most=operators, options=options) as subject,
        Device(device, Path(cache)) as opened,
    ):
        places = {
            name: {kind: found for kind, found in sites(library).items() if kind in TEXT_KINDS}
            for name, library in subject.libraries.items()
        }
        mutants = each_and_drawn(places, each, count, seed)
        scorer = Scorer(subject, opened)
        scores: list[Score] = []
        for score in scorer.score(sorted(mutants, key=lambda mutant: mutant.operator)):
            scores.append(score)
            say(f"{device.platform}: {len(scores)} of {len(mutants)}")
        opened.close()
        clean: dict[str, frozenset[str]] = {}
        if check_seconds:
            with open_checking(subject) as checking:
                clean = checking.clean_findings()
                scores = list(checking.check(scores, check_seconds))
        else:
            scores = [replace(score, unchecked="no checker was asked") for score in scores]
        possible = sum(len(found) for kinds in places.values() for found in kinds.values())
        return LanguageScore(
            device,
            options,
            next(iter(subject.libraries.values())).modules[0].dialect,
            len(subject.libraries),
            possible,
            tuple(scores),
            clean,
            time.monotonic() - begun,
        )


def table(languages: Sequence[LanguageScore]) -> str:
    """What was found, as Markdown: made, observable and detected of each kind, by language."""
    lines = [
        f"| language | device | kernels | {' | '.join(TEXT_KINDS)} | not built | found by "
        "| silent: checked, not checked | right kernels with a finding |",
        "|---|---|---|" + "---|" * (len(TEXT_KINDS) + 4),
    ]
    for each in languages:
        cells = [_counted(each.scores, kind) for kind in TEXT_KINDS]
        refused = sum(score.outcome == "not built" for score in each.scores)
        by = Counter(score.found_by for score in each.scores if score.outcome == "detected")
        how = ", ".join(f"{name} {number}" for name, number in by.most_common())
        silent = [score for score in each.scores if score.outcome == "equivalent"]
        unchecked = sum(bool(score.unchecked) for score in silent)
        device = ", ".join([each.device.name, *map("=".join, each.options)])
        lines.append(
            f"| {each.dialect} | {device} | {each.operators} | {' | '.join(cells)} "
            f"| {refused} | {how} | {len(silent) - unchecked}, {unchecked} | {len(each.clean)} |"
        )
    return "\n".join(lines) + "\n"


def _counted(scores: Sequence[Score], kind: str) -> str:
    """Made, observable and detected."""
    own = [s for s in scores if s.mutant.site.kind == kind and s.outcome != "not built"]
    if not own:
        return "none"
    shown = [s for s in own if s.outcome != "equivalent"]
    return f"{len(own)}, {len(shown)}, {sum(s.outcome == 'detected' for s in shown)}"


def missed(languages: Sequence[LanguageScore]) -> list[str]:
    """Observable mutants that were not found, one line each."""
    return [
        f"{each.dialect}: {s.mutant.operator}, line {s.mutant.site.line}: {s.mutant.site.kind}: "
        f"{s.mutant.site.before!r} became {s.mutant.site.after!r}; {s.observed}"
        for each in languages
        for s in each.scores
        if s.outcome == "missed"
    ]
