"""Detectors that look at loss, gradient norm and accuracy, on the re-created errors and twins.

python scripts/invariants_peers.py             all cases, as a table
python scripts/invariants_peers.py --write     into docs/invariants.md

The column of TrainCheck is what scripts/traincheck_errors.py found, that of tapml is of the table
of errors, which scripts/invariants_errors.py makes. The settings are those of section 5.1 of the
paper: spike above 75, trend with a tolerance of 3, LOF with 2 neighbours, isolation forest with a
contamination of 0.1, z-score above 3. A detector sees the series of one run, as a dashboard does;
of ranks, those of the first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from scripts.marked_section import write_between
from scripts.training_errors import one_process, ranks  # noqa: F401 - they register cases
from scripts.training_errors.case import CASES, TWIN_SEED, Case
from scripts.training_errors.metrics import measured
from scripts.training_errors.running import ENVIRONMENT
from tapml.isolate.death import GroupDiedError
from tapml.isolate.member import Member
from tapml.isolate.pool import Pool

DOCUMENT: Final = ROOT / "docs" / "invariants.md"
TRAINCHECK: Final = ROOT / "scripts" / "training_errors" / "traincheck.jsonl"
ERRORS: Final = "<!-- errors: begin -->"
BEGIN: Final = "<!-- peers: begin -->"
END: Final = "<!-- peers: end -->"
JOB: Final = "scripts.invariants_peers:run_rank"
_LIMIT_SECONDS: Final = 30.0

Series = dict[str, list[float]]


def run_rank(member: Member, payload: Any) -> Series:
    """One rank of a case; its series."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{member.port}",
        rank=member.rank,
        world_size=member.size,
        timeout=timedelta(seconds=_LIMIT_SECONDS),
    )
    with measured() as found:
        CASES[payload["case"]].run(payload["seed"], payload["buggy"])
    return found.series()


def series_of(case: Case, buggy: bool, pool: Pool) -> Series:
    """The series of a run; empty ones if its ranks were aborted."""
    if case.ranks == 1:
        with measured() as found:
            case.run(TWIN_SEED, buggy)
        return found.series()
    payload = {"case": case.id, "seed": TWIN_SEED, "buggy": buggy}
    try:
        first: Series = pool.group(case.ranks, JOB, payload, port=True).result()[0]
    except GroupDiedError:
        if not (buggy and case.aborts):
            raise
        return {"loss": [], "gradient_norm": [], "accuracy": []}
    return first


def spike(values: np.ndarray, rising: bool) -> Sequence[int]:
    """Steps in which the value is above 75, or is no number."""
    del rising
    return [step for step, value in enumerate(values) if not abs(value) <= 75]


def trend(values: np.ndarray, rising: bool) -> Sequence[int]:
    """Steps after which the value has moved the wrong way three times in a row."""
    wrong = np.diff(values) * (1 if rising else -1) <= 0
    return [step + 3 for step in range(len(wrong) - 2) if wrong[step : step + 3].all()]


def z_score(values: np.ndarray, rising: bool) -> Sequence[int]:
    """Steps that are more than three standard deviations from the mean."""
    del rising
    spread = values.std()
    return [] if spread == 0 else list(np.flatnonzero(abs(values - values.mean()) > 3 * spread))


def outlier_factor(values: np.ndarray, rising: bool) -> Sequence[int]:
    """Steps that are outliers among their neighbours."""
    from sklearn.neighbors import LocalOutlierFactor

    del rising
    with warnings.catch_warnings():
        # Equal values of an accuracy over a few rows.
        warnings.simplefilter("ignore", UserWarning)
        return list(np.flatnonzero(LocalOutlierFactor(2).fit_predict(values[:, None]) < 0))


def forest(values: np.ndarray, rising: bool) -> Sequence[int]:
    """Steps that trees isolate soon."""
    from sklearn.ensemble import IsolationForest

    del rising
    found = IsolationForest(contamination=0.1, random_state=0).fit_predict(values[:, None])
    return list(np.flatnonzero(found < 0))


DETECTORS: Final[dict[str, Callable[[np.ndarray, bool], Sequence[int]]]] = {
    "spike": spike,
    "trend": trend,
    "z-score": z_score,
    "LOF": outlier_factor,
    "isolation forest": forest,
}


def first_alarm(name: str, series: Series) -> int | None:
    """The first step in which a detector alarms on one of the series."""
    found = []
    for kind, values in series.items():
        numbers = np.array([value for value in values if math.isfinite(value)])
        if name == "spike":
            numbers = np.array(values)
        # Of the gradient norm there is no right direction.
        if len(numbers) < 4 or (name == "trend" and kind == "gradient_norm"):
            continue
        found += list(DETECTORS[name](numbers, kind == "accuracy"))
    return int(min(found)) if found else None


def told_by_tapml() -> dict[str, tuple[str, bool]]:
    """By case: the first step of a violation and how well its cause is named; and of the twin."""
    text = DOCUMENT.read_text("utf-8").partition(ERRORS)[2].partition("<!--")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    step, cause, twin = map(rows[0].index, ("first seen", "cause", "twin"))
    return {row[0]: (f"{row[step]}, {row[cause]}", row[twin] != "0") for row in rows[2:]}


def told_by_traincheck() -> dict[str, dict[str, Any]]:
    """By case that was run: what TrainCheck found."""
    lines = TRAINCHECK.read_text("utf-8").splitlines() if TRAINCHECK.exists() else []
    return {each["id"]: each for each in map(json.loads, lines)}


def cell_of_traincheck(found: dict[str, Any] | None) -> str:
    """How many invariants the error violates and its twin does not, and how many the twin does."""
    if found is None:
        return "not run"
    if "failed" in found:
        return "fails"
    first = found["first_step"]
    seen = f"{found['alone']} more" if found["alone"] else "-"
    if found["alone"] and first is not None:
        # It counts from 1 on.
        seen += f", step {first - 1}" if first else ", set-up"
    return seen + (f" (twin: {found['twin']})" if found["twin"] else "")


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help="ids; all by default")
    parser.add_argument("--write", action="store_true", help="write the table into the document")
    arguments = parser.parse_args()
    ours, theirs = told_by_tapml(), told_by_traincheck()
    names = " | ".join(["id", "tapml", "TrainCheck", *DETECTORS])
    lines = [f"| {names} |", "|---" * (len(DETECTORS) + 3) + "|"]
    told = dict.fromkeys(DETECTORS, 0)
    noisy = dict.fromkeys(DETECTORS, 0)
    chosen = [case for name, case in CASES.items() if name in (arguments.cases or CASES)]
    with Pool([JOB], workers=2, deadline_seconds=180.0, environment=ENVIRONMENT) as pool:
        for case in chosen:
            clean, wrong = (series_of(case, buggy, pool) for buggy in (False, True))
            cells = []
            for name in DETECTORS:
                alarm, false = first_alarm(name, wrong), first_alarm(name, clean)
                told[name] += alarm is not None and false is None
                noisy[name] += false is not None
                shown = "-" if alarm is None else f"step {alarm}"
                cells.append(shown if false is None else f"{shown} (twin: step {false})")
            first = [case.id, ours[case.id][0], cell_of_traincheck(theirs.get(case.id))]
            lines.append(f"| {' | '.join([*first, *cells])} |")
            print(lines[-1], flush=True)
    mine = [ours[case.id] for case in chosen]
    right = sum("not seen" not in said and not twin for said, twin in mine)
    ran = [each for each in theirs.values() if "failed" not in each]
    for says, own, other, counts in (
        (
            "alarm, and none on the twin",
            right,
            sum(each["alone"] > 0 and not each["twin"] for each in ran),
            told,
        ),
        (
            "twins with an alarm",
            sum(twin for _, twin in mine),
            sum(each["twin"] > 0 for each in ran),
            noisy,
        ),
    ):
        cells = [says, str(own), f"{other} of {len(ran)}", *(str(counts[n]) for n in DETECTORS)]
        lines.append(f"| {' | '.join(cells)} |")
    print("\n".join(lines[-2:]))
    if arguments.write:
        write_between(DOCUMENT, BEGIN, END, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
