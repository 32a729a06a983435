"""Re-creates training errors, checks them, and writes the table of docs/invariants.md.

python scripts/invariants_errors.py                 all cases, as a table
python scripts/invariants_errors.py B3 AC-2665      some
python scripts/invariants_errors.py --write         into the document
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from scripts.marked_section import write_between
from scripts.training_errors import one_process, ranks  # noqa: F401 - they register cases
from scripts.training_errors.case import CASES, Case
from scripts.training_errors.running import ENVIRONMENT, JOB, study
from tapml.invariants.checking import CheckReport, step_text
from tapml.isolate.pool import Pool

BEGIN: Final = "<!-- errors: begin -->"
END: Final = "<!-- errors: end -->"
_HEAD: Final = (
    "| id | error | ranks | learned | twin | error violates | first seen | acts from | named by "
    "| cause |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def row(case: Case, learned: int, clean: CheckReport, wrong: CheckReport) -> str:
    """A line of the table."""
    found = wrong.violated > 0
    first = step_text(min(cause.first_step for cause in wrong.causes)) if found else "not seen"
    kinds = {each.invariant.relation for cause in wrong.causes for each in cause.findings}
    # Exact: what names the cause heads the report. Near: it is further down, or an effect is seen.
    exact = found and wrong.causes[0].head.invariant.relation == case.relation
    named = case.relation if case.relation in kinds else ", ".join(sorted(kinds)) or "-"
    cells = (
        case.id,
        case.says,
        case.ranks,
        learned,
        clean.violated,
        wrong.violated,
        first,
        step_text(case.trigger),
        named,
        "exact" if exact else "near" if found else "-",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Run the cases; 1 if one is not detected or its twin is not silent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help="ids; all by default")
    parser.add_argument("--write", action="store_true", help="write the table into the document")
    arguments = parser.parse_args()
    chosen = [
        case for name, case in CASES.items() if not arguments.cases or name in arguments.cases
    ]
    lines, wrong_cases = [_HEAD], []
    print(_HEAD)
    with Pool([JOB], workers=2, deadline_seconds=180.0, environment=ENVIRONMENT) as pool:
        for case in chosen:
            learned, clean, wrong = study(case, pool)
            lines.append(row(case, len(learned.invariants), clean, wrong))
            print(lines[-1], flush=True)
            if clean.violated or not wrong.violated:
                wrong_cases.append(case.id)
    print(f"{len(chosen) - len(wrong_cases)} of {len(chosen)} detected with a silent twin")
    if arguments.write:
        write_between(ROOT / "docs" / "invariants.md", BEGIN, END, "\n".join(lines))
    return 1 if wrong_cases else 0


if __name__ == "__main__":
    sys.exit(main())
