"""Checks programs with silent errors that no paper lists, and writes their table.

python scripts/invariants_further.py                 all programs, as a table
python scripts/invariants_further.py sam-not-undone  some
python scripts/invariants_further.py --write         into docs/invariants.md
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from scripts.marked_section import write_between
from scripts.training_errors.further import FURTHER
from tapml.invariants.checking import Checker, CheckReport, report_of, step_text
from tapml.invariants.inference import Run, infer
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.recording import recorded

BEGIN: Final = "<!-- further: begin -->"
END: Final = "<!-- further: end -->"
_HEAD: Final = (
    "| program | error | learned | twin | error violates | first seen | named by |\n"
    "|---|---|---|---|---|---|---|"
)


def recorded_run(train: Callable[[int, bool], None], seed: int, *, buggy: bool) -> Run:
    """A program, recorded."""
    with recorded() as recording:
        train(seed, buggy)
    return recording.run(f"{seed}")


def _checked(run: Run, learned: InvariantSet) -> CheckReport:
    checker = Checker(learned)
    for window in run.windows:
        checker.check(window)
    return report_of(checker, run.name, len(run.windows) - 1, (0,))


def study(train: Callable[[int, bool], None]) -> tuple[InvariantSet, CheckReport, CheckReport]:
    """What is learned from two right runs, and its check of the clean twin and of the error."""
    learned = infer([recorded_run(train, seed, buggy=False) for seed in (1, 2)])
    twin, wrong = (
        _checked(recorded_run(train, 3, buggy=buggy), learned) for buggy in (False, True)
    )
    return learned, twin, wrong


def _row(name: str, says: str, learned: int, twin: CheckReport, wrong: CheckReport) -> str:
    first, named = "not seen", "-"
    if wrong.violated:
        first = step_text(wrong.causes[0].first_step)
        named = wrong.causes[0].head.invariant.relation
    cells = name, says, learned, twin.violated, wrong.violated, first, named
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Run the programs; 1 if a twin is not silent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("programs", nargs="*", help="names; all by default")
    parser.add_argument("--write", action="store_true", help="write the table into the document")
    parser.add_argument("--verbose", action="store_true", help="print what is violated")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines, alarms, seen = [_HEAD], 0, 0
    print(_HEAD)
    chosen = {k: v for k, v in FURTHER.items() if not arguments.programs or k in arguments.programs}
    for name, (says, train) in chosen.items():
        learned, twin, wrong = study(train)
        lines.append(_row(name, says, len(learned.invariants), twin, wrong))
        print(lines[-1], flush=True)
        for report in (twin, wrong) if arguments.verbose else ():
            for cause in report.causes:
                for each in cause.findings:
                    print("   ", each.invariant.text, "|", each.first.found)
        alarms += bool(twin.violated)
        seen += bool(wrong.violated)
    lines.append(f"\n{seen} of {len(chosen)} errors are found; {alarms} twins have an alarm.")
    print(lines[-1])
    if arguments.write:
        write_between(ROOT / "docs" / "invariants.md", BEGIN, END, "\n".join(lines))
    return 1 if alarms else 0


if __name__ == "__main__":
    raise SystemExit(main())
