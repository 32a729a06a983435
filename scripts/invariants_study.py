"""False alarms, transfer and false negatives of invariants, after sections 5.3 to 5.6 of the paper.

python scripts/invariants_study.py             go on where the last run stopped, print the tables
python scripts/invariants_study.py alarms      one: alarms, transfer, negatives, selection
python scripts/invariants_study.py --write     and write them into docs/invariants.md
python scripts/invariants_study.py --again     forget what was measured

The programs are those of scripts/clean_programs.csv. What was measured is kept in a file, a line
each, so an interrupted study goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from scripts.clean_programs import OPTIMIZERS, PROGRAMS, SCHEDULERS, Program
from scripts.marked_section import write_between
from scripts.training_errors import one_process  # noqa: F401 - it registers cases
from scripts.training_errors.case import CASES, TWIN_SEED, Case
from tapml.invariants.checking import Checker
from tapml.invariants.inference import Run, infer
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.precondition import ALWAYS
from tapml.invariants.recording import recorded

BEGIN: Final = "<!-- study: begin -->"
END: Final = "<!-- study: end -->"
RIGHT_SEEDS: Final = (1, 2)
INPUTS: Final = (2, 3, 5, 6)
DRAWS: Final = 1
KINDS: Final = tuple(dict.fromkeys(each.kind for each in PROGRAMS))
SAMPLES: Final = 6
SAMPLED: Final = (1, 2, 3, 5)
SELECTED: Final = (100, 50, 25)
SETTINGS: Final = ("new seed", "new optimizer", "new configuration", "new pipeline", "other class")


class Kept:
    """Results by name, in a file that grows by a line each."""

    def __init__(self, path: Path, *, measure: bool) -> None:
        self._measure = measure
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._found: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                # A killed study leaves its last line incomplete.
                if line.endswith("]"):
                    name, value = json.loads(line)
                    self._found[name] = value

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """A result, measured if it is not known yet; None if nothing is to be measured."""
        if name not in self._found and self._measure:
            self._found[name] = make()
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps([name, self._found[name]])}\n")
            print(f"  {name}", file=sys.stderr)
        return self._found.get(name)


@functools.cache
def run_of(program: Program, seed: int, optimizer: str = "") -> Run:
    """A clean program, recorded."""
    with recorded() as recording:
        program.run(seed, optimizer)
    return recording.run(f"{program.name}, seed {seed}")


def checked(learned: InvariantSet, run: Run) -> Checker:
    """A run tested on invariants."""
    checker = Checker(learned)
    for window in run.windows:
        checker.check(window)
    return checker


def drawn(kind: str, inputs: int, draw: int) -> list[Program]:
    """Programs of a class to learn from."""
    mine = [each for each in PROGRAMS if each.kind == kind]
    chance = random.Random(f"{kind} {inputs} {draw}")  # noqa: S311 - a draw that repeats
    return chance.sample(mine, inputs)


@functools.cache
def learned_from(kind: str, inputs: int, draw: int) -> InvariantSet:
    """What two seeds of each program show."""
    return infer([run_of(each, seed) for each in drawn(kind, inputs, draw) for seed in RIGHT_SEEDS])


def fresh_runs(kind: str, inputs: int, draw: int) -> dict[str, list[Run]]:
    """Clean runs that were not learned from, by what is new in them."""
    taken, seed = drawn(kind, inputs, draw), RIGHT_SEEDS[-1] + 1
    found: dict[str, list[Run]] = {each: [] for each in SETTINGS}
    for each in taken:
        found["new seed"].append(run_of(each, seed))
        others = [name for name in OPTIMIZERS if name != each.optimizer][:2]
        found["new optimizer"] += [run_of(each, seed, name) for name in others]
        name = next(name for name in SCHEDULERS if name != each.scheduler)
        other = dataclasses.replace(each, scheduler=name)
        found["new configuration"].append(run_of(other, seed))
    for each in PROGRAMS:
        if each.kind == kind and each not in taken:
            found["new pipeline"].append(run_of(each, seed))
        elif each.kind != kind and inputs == INPUTS[-1]:
            found["other class"].append(run_of(each, seed))
    return found


def alarms(kind: str, inputs: int, draw: int) -> dict[str, Any]:
    """Violated and applied invariants by what is new, and the sentences of violated ones."""
    learned = learned_from(kind, inputs, draw)
    found: dict[str, Any] = {"learned": len(learned.invariants)}
    told: Counter[str] = Counter()
    for setting, runs in fresh_runs(kind, inputs, draw).items():
        checkers = [checked(learned, run) for run in runs]
        violated = sum(len(each.findings) for each in checkers)
        found[setting] = [violated, sum(len(each.applied) for each in checkers)]
        told.update(one.invariant.text for each in checkers for one in each.findings.values())
    return {**found, "violated": dict(told)}


def table_of_alarms(kept: Kept) -> list[str]:
    """Figure 7."""
    lines = [f"| class | programs | learned | {' | '.join(SETTINGS)} |", "|---" * 8 + "|"]
    totals: dict[str, list[int]] = {each: [0, 0] for each in (*SETTINGS, "few")}
    for kind in KINDS:
        for inputs in INPUTS:
            parts = [
                kept.get(
                    f"alarms {kind} {inputs} {draw}", functools.partial(alarms, kind, inputs, draw)
                )
                for draw in range(DRAWS)
            ]
            if None in parts:
                continue
            cells = []
            for setting in SETTINGS:
                counts = [sum(part[setting][place] for part in parts) for place in (0, 1)]
                cells.append(share(*counts))
                for place in (0, 1):
                    totals[setting][place] += counts[place]
            count = sum(part["learned"] for part in parts) // DRAWS
            lines.append(f"| {kind} | {inputs} | {count} | {' | '.join(cells)} |")
    whole = " | ".join(share(*totals[each]) for each in SETTINGS)
    return [*lines, f"| all | | | {whole} |"]


def share(violated: int, applied: int) -> str:
    """Per cent, with its counts."""
    return f"{100 * violated / applied:.2f} % ({violated} of {applied})" if applied else "-"


def transfer(kind: str) -> list[tuple[bool, bool, int]]:
    """For each valid invariant: whether it has a precondition, is PyTorch's, and its programs."""
    learned = learned_from(kind, INPUTS[-1], 0)
    alarmed: set[str] = set()
    applied: Counter[str] = Counter()
    for each in PROGRAMS:
        checker = checked(learned, run_of(each, RIGHT_SEEDS[-1] + 1))
        alarmed |= set(checker.findings)
        applied.update(list(checker.applied))
    return [
        (
            each.precondition != ALWAYS,
            all(name.startswith(("torch.", "model.")) for name in apis(each.params.items())),
            applied[each.id],
        )
        for each in learned.invariants
        if each.id not in alarmed
    ]


def apis(params: Iterable[tuple[str, str]]) -> list[str]:
    """The APIs that an invariant is about."""
    return [value for name, value in params if name in ("api", "parent")]


def table_of_transfer(kept: Kept) -> list[str]:
    """Figure 8."""
    found = [
        tuple(each)
        for kind in KINDS
        for each in kept.get(f"transfer {kind}", functools.partial(transfer, kind))
    ]
    rows = {
        "all": found,
        "with a precondition": [each for each in found if each[0]],
        "without": [each for each in found if not each[0]],
        "of PyTorch alone": [each for each in found if each[1]],
    }
    size = len(PROGRAMS) // len(KINDS)
    lines = [
        f"| invariants | number | in over {INPUTS[-1]} programs | in over {size} | median |",
        "|---" * 5 + "|",
    ]
    for name, entries in rows.items():
        counts = sorted(count for *_, count in entries)
        if not counts:
            lines.append(f"| {name} | 0 | - | - | - |")
            continue
        parts = [
            f"{100 * sum(c > limit for c in counts) / len(counts):.0f} %"
            for limit in (INPUTS[-1], size)
        ]
        lines.append(
            f"| {name} | {len(counts)} | {' | '.join(parts)} | {counts[len(counts) // 2]} |"
        )
    return lines


ERRORS: Final = [each for each in CASES.values() if each.ranks == 1]


@functools.cache
def case_run(case: Case, seed: int, buggy: bool = False) -> Run:
    """A re-created error or its clean twin, recorded."""
    with recorded() as recording:
        case.run(seed, buggy)
    return recording.run(f"{case.id}, seed {seed}")


def detects(learned: InvariantSet, case: Case) -> bool:
    """Whether the error violates an invariant that its clean twin does not."""
    wrong = set(checked(learned, case_run(case, TWIN_SEED, True)).findings)
    return bool(wrong - set(checked(learned, case_run(case, TWIN_SEED)).findings))


def seeds_of(case: Case, count: int) -> InvariantSet:
    """Learned from clean runs of the program that has the error, with other seeds."""
    return infer([case_run(case, TWIN_SEED + 1 + number) for number in range(count)])


def features_of(run: Run) -> frozenset[str]:
    """PyTorch's APIs that a run calls, workers, casts, and what else its context has."""
    calls = {name for window in run.windows for name in window.by_name}
    records = [record for window in run.windows for record in window.records]
    context = {name for each in records for name, value in each.context.items() if value}
    workers = {"workers" for each in records if each.fields.get("workers")}
    apis = {name for name in calls if name.startswith(("torch.", "model."))}
    return frozenset(apis | context | workers)


def most_like(case: Case, count: int) -> list[Run]:
    """The clean programs that do most of what the program with the error does.

    A feature counts by the logarithm of how few programs have it, as words do in a search.
    """
    runs = [run_of(each, RIGHT_SEEDS[0]) for each in PROGRAMS]
    features = [features_of(run) for run in runs]
    wanted = features_of(case_run(case, RIGHT_SEEDS[0]))
    users = Counter(name for each in features for name in each)

    def likeness(place: int) -> tuple[float, int]:
        shared = wanted & features[place]
        weight = sum(math.log(len(runs) / users[name]) for name in shared)
        return weight, -len(features[place])

    order = sorted(range(len(runs)), key=likeness, reverse=True)
    return [runs[place] for place in order[:count]]


def negatives(setting: str, count: int, sample: int) -> dict[str, list[str]]:
    """Which errors are detected by what some programs show, all invariants or the first ones."""
    chance = random.Random(f"{setting} {count} {sample}")  # noqa: S311 - a draw that repeats
    found: dict[str, list[str]] = {"all": [], **{str(each): [] for each in SELECTED}}
    shared = None
    if setting == "clean programs":
        taken = chance.sample(PROGRAMS, count)
        shared = infer([run_of(each, RIGHT_SEEDS[0]) for each in taken])
    for case in ERRORS:
        if setting == "same program":
            learned = seeds_of(case, count)
        elif setting == "similar":
            learned = infer(most_like(case, count))
        elif shared is None:
            # The twins of other errors: programs like this one, but another.
            others = chance.sample([each for each in ERRORS if each is not case], count)
            learned = infer([case_run(each, RIGHT_SEEDS[0]) for each in others])
        else:
            learned = shared
        if detects(learned, case):
            found["all"].append(case.id)
            for limit in SELECTED:
                if detects(learned.selected(limit), case):
                    found[str(limit)].append(case.id)
    return found


WAYS: Final = {
    "same program, other seeds": ("same program", 1),
    "similar programs": ("similar", 1),
    "programs of other errors": ("other twins", SAMPLES),
    "any of the 60 programs": ("clean programs", SAMPLES),
}


def _shares(kept: Kept, way: str, count: int) -> dict[str, float] | None:
    setting, samples = WAYS[way]
    found = [
        kept.get(
            f"negatives {setting} {count} {sample}",
            functools.partial(negatives, setting, count, sample),
        )
        for sample in range(samples)
    ]
    if None in found:
        return None
    return {
        name: 100 * sum(len(each[name]) for each in found) / (samples * len(ERRORS))
        for name in found[0]
    }


def table_of_negatives(kept: Kept) -> list[str]:
    """Figure 9."""
    lines = [f"| learned from | {' | '.join(map(str, SAMPLED))} |", "|---" * 5 + "|"]
    for way in WAYS:
        shares = [_shares(kept, way, count) for count in SAMPLED]
        cells = ["-" if each is None else f"{each['all']:.0f} %" for each in shares]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def table_of_selection(kept: Kept) -> list[str]:
    """Section 5.6: what is still detected by the first invariants of a set."""
    names = ("all", *map(str, SELECTED))
    lines = [f"| {SAMPLED[-1]} inputs | {' | '.join(names)} |", "|---" * 5 + "|"]
    for way in WAYS:
        shares = _shares(kept, way, SAMPLED[-1])
        if shares is not None:
            lines.append(f"| {way} | {' | '.join(f'{shares[name]:.0f} %' for name in names)} |")
    return lines


TABLES: Final = {
    "alarms": table_of_alarms,
    "transfer": table_of_transfer,
    "negatives": table_of_negatives,
    "selection": table_of_selection,
}


def main(given: Sequence[str] | None = None) -> int:
    """Measure what is not known yet and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="all by default")
    parser.add_argument("--write", action="store_true", help="write the tables into the document")
    parser.add_argument(
        "--known", action="store_true", help="measure nothing: rows of alarms that are complete"
    )
    parser.add_argument("--again", action="store_true", help="forget what was measured")
    parser.add_argument(
        "--kept", type=Path, default=ROOT / "build" / "invariants_study.jsonl", metavar="FILE"
    )
    arguments = parser.parse_args(given)
    if arguments.again:
        arguments.kept.unlink(missing_ok=True)
    kept = Kept(arguments.kept, measure=not arguments.known)
    parts = [make(kept) for name, make in TABLES.items() if name in (arguments.tables or TABLES)]
    text = "\n\n".join("\n".join(lines) for lines in parts)
    print(text)
    if arguments.write:
        write_between(ROOT / "docs" / "invariants.md", BEGIN, END, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
