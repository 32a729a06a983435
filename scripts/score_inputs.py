"""The same wrong kernels, judged with random, statistics-matched and carved inputs.

Evidence for section II-A of the paper. Mutants are drawn as in scripts/score_mutants.py. Each is
replayed on the same number of tests of the same shapes, by the same verdicts, without probes: only
the inputs differ. A mutant counts if it leaves other bytes than the right kernel with any of the
three. A right kernel that does not pass with made inputs is a false alarm, and its mutants count as
not found with them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.mutants.kinds import sites
from scripts.mutants.made_inputs import KINDS, made_test
from scripts.mutants.sampling import Mutant, draw
from scripts.mutants.scoring import Score, Scorer
from scripts.mutants.subject import Device, Subject, carve_suite, open_subject
from tapml.cli.model_arguments import positive
from tapml.compiler.reference import compile_reference
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.probing import Probing
from tapml.plan.graph_plan import Operator
from tapml.session.settings import Settings
from tapml_targets.errors import MismatchError, TapmlError
from tapml_targets.ranking import find_device

SEED: Final = 20261120
CARVED: Final = "carved"
Found = dict[str, list[Score | None]]
"""Scores by kind of inputs; None for a mutant of an operator whose right kernel fails."""


class Unprobed(Probing):
    """The oracle of a subject, without probes: every kind of inputs is judged by itself."""

    def tests(self, operator: Operator, carved: Iterable[CarvedCase]) -> Iterator[CarvedCase]:
        """The tests alone."""
        yield from carved


def main(arguments: Sequence[str] | None = None) -> int:
    """Score, print the table, and write everything as data."""
    parser = argparse.ArgumentParser(
        prog="scripts/score_inputs.py",
        description=__doc__,
        epilog="example:\n  python scripts/score_inputs.py --count 300 --tests 6 --json out.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=positive, default=300, help="mutants (default: 300)")
    parser.add_argument("--tests", type=positive, default=6, help="tests per operator (6)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the draw (default: {SEED})")
    parser.add_argument("--device", default="opencl", help="opencl, opencl:1 (default: the best)")
    parser.add_argument("--model", default="pydoc-llama", help="shipped model or local folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as data")
    options = parser.parse_args(arguments)
    try:
        mutants, found = score(options)
    except TapmlError as error:
        print(f"scripts/score_inputs.py: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("scripts/score_inputs.py: interrupted", file=sys.stderr)
        return 130
    print("\n".join(table(mutants, found)))
    if options.json is not None:
        options.json.write_text(json.dumps(_data(found), indent=1), encoding="utf-8")
    return 0


def score(options: argparse.Namespace) -> tuple[Sequence[Mutant], Found]:
    """Scores of the same mutants for each kind of inputs."""
    description = find_device(options.device, "float32")
    with tempfile.TemporaryDirectory(prefix="tapml-inputs-") as temporary:
        folder = Path(temporary) / "suite"
        carve_suite(Settings(options.model, description.platform, dtype="float32"), folder)
        with (
            open_subject(folder, description, per_operator=options.tests) as subject,
            Device(description, Path(temporary) / "cache") as device,
        ):
            places = {name: sites(library) for name, library in subject.libraries.items()}
            order = {name: position for position, name in enumerate(subject.libraries)}
            mutants = sorted(
                draw(places, options.count, options.seed),
                key=lambda mutant: (order[mutant.operator], mutant.name),
            )
            found: Found = {}
            for kind, each in subjects(subject).items():
                found[kind] = _scores(Scorer(each, device), mutants, kind)
    return mutants, found


def subjects(subject: Subject) -> dict[str, Subject]:
    """The subject with each kind of inputs, carved ones last."""
    # The oracle of the subject, which every kind shares.
    probing = Unprobed(subject.probing._oracle, dict)
    reference = compile_reference(subject.operators.values())
    made: dict[str, Mapping[str, Sequence[CarvedCase]]] = {
        kind: {
            name: tuple(
                made_test(subject.operators[name], test, reference[name], kind) for test in tests
            )
            for name, tests in subject.tests.items()
        }
        for kind in KINDS
    }
    made[CARVED] = subject.tests
    return {kind: replace(subject, tests=tests, probing=probing) for kind, tests in made.items()}


def _scores(scorer: Scorer, mutants: Sequence[Mutant], kind: str) -> list[Score | None]:
    scores: list[Score | None] = []
    wrong: set[str] = set()
    for number, mutant in enumerate(mutants, 1):
        made = None
        if mutant.operator not in wrong:
            try:
                (made,) = scorer.score([mutant])
            except MismatchError as error:
                wrong.add(mutant.operator)
                print(f"\n{kind}: {error}", file=sys.stderr)
        scores.append(made)
        print(f"\r{kind}: {number} of {len(mutants)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return scores


def counted(found: Found) -> list[int]:
    """Indices of the mutants that show with any kind of inputs."""
    return [
        index
        for index, scores in enumerate(zip(*found.values(), strict=True))
        if any(each is not None and each.outcome in ("detected", "missed") for each in scores)
    ]


def table(mutants: Sequence[Mutant], found: Found) -> Iterator[str]:
    """Found mutants by kind of mistake and kind of inputs, as Markdown."""
    shown = counted(found)
    kinds = sorted({mutants[index].site.kind for index in shown})
    yield f"| kind | observable | {' | '.join(found)} |"
    yield "|---" * (2 + len(found)) + "|"
    for kind in [*kinds, "**all**"]:
        own = [each for each in shown if kind in (mutants[each].site.kind, "**all**")]
        counts = [str(sum(_detected(scores[index]) for index in own)) for scores in found.values()]
        yield f"| {kind} | {len(own)} | {' | '.join(counts)} |"
    for kind, scores in found.items():
        alarms = {m.operator for m, each in zip(mutants, scores, strict=True) if each is None}
        if alarms:
            yield f"{kind}: the right kernel does not pass: {', '.join(sorted(alarms))}"
    yield f"{len(mutants)} mutants made, {len(shown)} of them observable"


def _detected(score: Score | None) -> bool:
    return score is not None and score.outcome == "detected"


def _data(found: Found) -> dict[str, Any]:
    return {
        kind: [None if each is None else each.to_json() for each in scores]
        for kind, scores in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
