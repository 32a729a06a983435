"""Makes the curated set for PyTorch, and counts false alarms on clean programs.

    python scripts/invariants_curated.py                  the table of false alarms
    python scripts/invariants_curated.py --write          the shipped set and the document's table

The set is learned from all programs of scripts/training_programs.py together, with two seeds and
two optimizers each, and keeps what is about PyTorch alone and was seen in at least three programs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import msgspec

from scripts.marked_section import write_between
from scripts.training_programs import OPTIMIZERS, PROGRAMS, Program
from tapml.invariants.checking import Checker
from tapml.invariants.inference import Run, infer
from tapml.invariants.invariant import CURATED, InvariantSet, write_set
from tapml.invariants.record import BATCH
from tapml.invariants.recording import recorded
from tapml.invariants.relation import relations

BEGIN: Final = "<!-- alarms: begin -->"
END: Final = "<!-- alarms: end -->"
_LEAST_PROGRAMS: Final = 3
_PER_PROGRAM: Final = 4


def record(program: Program, seed: int, optimizer: str) -> Run:
    """A run of a program."""
    with recorded() as recording:
        program.run(seed, optimizer)
    return recording.run(f"{program.name}, seed {seed}, {optimizer}")


def alarms(learned: InvariantSet, runs: Iterable[Run]) -> tuple[int, int]:
    """How many invariants were violated, and how many applied, in all runs."""
    violated = applied = 0
    for run in runs:
        checker = Checker(learned)
        for window in run.windows:
            checker.check(window)
        violated += len(checker.findings)
        applied += len(checker.applied)
    return violated, applied


def curated() -> InvariantSet:
    """What holds in all programs, about PyTorch alone."""
    runs = [
        record(program, seed, optimizer)
        for program in PROGRAMS
        for seed in (1, 2)
        for optimizer in ("Adam", "SGD")
    ]
    found = infer(runs)
    kept = [
        each
        for each in found.invariants
        if each.runs >= _PER_PROGRAM * _LEAST_PROGRAMS
        and all(name.startswith(("torch.", "model.")) for name in _apis(each.params.items()))
        # A parameter that no loss reaches keeps its value.
        and each.relation not in ("VariableAttribute", "Evaluated", "VarPeriodicChange")
        and not relations()[each.relation].own
        and each.params.get("mode") != "tied"
        # Trainers of libraries fetch batches ahead of the model.
        and BATCH not in (each.params.get("first"), each.params.get("second"))
    ]
    return msgspec.structs.replace(found, invariants=kept)


def _apis(params: Iterable[tuple[str, str]]) -> list[str]:
    return [value for name, value in params if name in ("api", "parent")]


def table() -> str:
    """False alarms by what is new in the checked run, per class of the runs learned from."""
    lines = [
        "| learned from | new seed | new optimizer | new program, same class | other classes |"
    ]
    lines.append("|---|---|---|---|---|")
    for kind in dict.fromkeys(each.kind for each in PROGRAMS):
        mine = [each for each in PROGRAMS if each.kind == kind]
        counts = {name: [0, 0] for name in ("seed", "optimizer", "program", "class")}

        def add(
            name: str, learned: InvariantSet, runs: list[Run], into: dict[str, list[int]]
        ) -> None:
            for place, count in enumerate(alarms(learned, runs)):
                into[name][place] += count

        right = {each.name: [record(each, s, "Adam") for s in (1, 2)] for each in mine}
        learned = infer([run for runs in right.values() for run in runs])
        add("seed", learned, [record(each, 3, "Adam") for each in mine], counts)
        others = [record(each, 3, name) for each in mine for name in list(OPTIMIZERS)[1:]]
        add("optimizer", learned, others, counts)
        foreign = [record(each, 3, "Adam") for each in PROGRAMS if each.kind != kind]
        add("class", learned, foreign, counts)
        for left in mine if len(mine) > 1 else []:
            rest = [run for name, runs in right.items() if name != left.name for run in runs]
            add("program", infer(rest), [record(left, 3, "Adam")], counts)
        cells = [_share(*each) for each in counts.values()]
        lines.append(f"| {kind}, {len(mine)} programs | {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(violated: int, applied: int) -> str:
    return f"{100 * violated / applied:.2f} % ({violated} of {applied})" if applied else "-"


def main() -> int:
    """Print, and with ``--write`` keep, the set and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the set and the document")
    arguments = parser.parse_args()
    found = curated()
    for each in found.invariants:
        print(f"{each.text}  ({each.runs} runs)")
    fresh = [record(each, 3, name) for each in PROGRAMS for name in OPTIMIZERS]
    told = "Of the curated set, on seed 3 with four optimizers: " + _share(*alarms(found, fresh))
    lines = f"{table()}\n\n{told}."
    print(lines)
    if arguments.write:
        write_set(found, CURATED["pytorch"])
        write_between(ROOT / "docs" / "invariants.md", BEGIN, END, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
