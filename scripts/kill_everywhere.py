"""Kills a session at every failpoint it passes, one by one, resumes it, and compares the verdicts.

The test suite does this once per kind and place, along one session (tests/offload/*/test_kills.py);
here every hit of a failpoint gets a separate session: hits are recorded in an unbroken run, then
before and after each the session is killed (or its disk fills), resumed, and compared with the
unbroken run. A minute or two per ten hits; ``--part 2/8`` does every eighth, to spread it over
machines.

    python3 scripts/kill_everywhere.py                       everything, on the tiny model
    python3 scripts/kill_everywhere.py --full                a full disk instead of a kill
    python3 scripts/kill_everywhere.py --only 'rename *'     some of the hits
    python3 scripts/kill_everywhere.py --part 1/20 --markdown table.md
    python3 scripts/kill_everywhere.py --seed 1 --minutes 60 in an order of chance, as many as fit
    python3 scripts/kill_everywhere.py --folder harm         keep the outcomes: killed itself, it
                                                             continues where it was

The bar: every hit ends in the same verdicts, complete files and no step done twice.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from tapml.runs.folder import RunFolder
from tapml.runs.kind import RunKind
from tapml.runs.result_key import ResultKey
from tests.offload.commands import Ended
from tests.offload.forked import run_forked
from tests.offload.phases import last_phase
from tests.offload.processes import half_written
from tests.offload.sessions import (
    FinishedSession,
    assert_same_verdicts,
    offload_arguments,
)
from tests.offload.wholeness import assert_no_step_twice, assert_whole


@dataclass(frozen=True)
class Hit:
    """The `number`-th time a process crosses a site; `place` begins with the session's folder."""

    moment: str
    kind: str
    place: str
    number: int

    def __str__(self) -> str:
        return f"{self.moment} {self.kind} */{self.place}#{self.number}"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a session that was harmed at a hit, and of its resume."""

    hit: Hit
    phase: str
    ended: str
    problem: str
    seconds: float


KIND = RunKind("tapml-kill-everywhere/1", results={"hit": Outcome})
SOURCES = ("tapml", "targets", "rpc_server", "tests/offload")


def main() -> int:
    """Return 1 if any hit did not end in the same verdicts."""
    options = _parse()
    root = Path(tempfile.mkdtemp(prefix="kill-everywhere-"))
    try:
        unbroken = _unbroken(root, options.device)
        hits = _hits(root / "record", unbroken.folder)
        part, parts = options.part
        wanted = [
            each
            for each in hits
            if (each.moment == "before" or not options.full)
            and (each.kind != "remove" or not options.full)
            and fnmatchcase(f"{each.kind} {each.place}", options.only)
        ][part - 1 :: parts]
        if options.seed is not None:
            random.Random(options.seed).shuffle(wanted)  # noqa: S311
        print(f"{len(hits)} hits, {len(wanted)} of them here", flush=True)
        outcomes = _harm_all(wanted, unbroken, root, options)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    table = _table(outcomes)
    print(table)
    if options.markdown is not None:
        options.markdown.write_text(table + "\n", encoding="utf-8")
    return 1 if any(outcome.problem for outcome in outcomes) else 0


def _harm_all(
    wanted: list[Hit], unbroken: FinishedSession, root: Path, options: argparse.Namespace
) -> list[Outcome]:
    """Harm a session at each hit; reuse earlier outcomes of the same code."""
    outcomes: list[Outcome] = []
    what, source = "full" if options.full else "kill", _source()
    deadline = time.monotonic() + options.minutes * 60
    run_folder = RunFolder(options.folder or root / "run", KIND)
    if not run_folder.exists:
        run_folder.begin()
    with run_folder.run() as run, run.phases.phase("harm", total=len(wanted)) as phase:
        for index, hit in enumerate(wanted):
            key = ResultKey.of(hit=str(hit), what=what, device=options.device, source=source)
            known = run.journal.result(key)
            if known is not None:
                outcome = msgspec.convert(known.data, Outcome)
            elif time.monotonic() > deadline:
                print(f"{len(wanted) - index} left out: {options.minutes} minutes are over")
                break
            else:
                outcome = _harm(hit, unbroken, root, what)
                status = "fail" if outcome.problem else "pass"
                run.journal.record(key, "hit", str(hit), status, asdict(outcome))
            outcomes.append(outcome)
            said = outcome.problem or "same verdicts"
            ended = f"{outcome.ended} in '{outcome.phase}'"
            before = " (known)" if known is not None else ""
            print(f"[{index + 1}/{len(wanted)}] {hit}: {ended}, {said}{before}", flush=True)
            phase.progress(index + 1, len(wanted), str(hit))
    return outcomes


def _source() -> str:
    """Hash of the code that is killed and resumed."""
    digest = hashlib.sha256()
    for path in sorted(path for name in SOURCES for path in (ROOT / name).rglob("*.py")):
        digest.update(f"{path}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="opencl:0", help="device (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="fill the disk instead of killing")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="'KIND PLACE' to match")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="every N-th")
    parser.add_argument("--seed", type=int, help="in an order of chance, not the session's")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin none after so long")
    parser.add_argument("--folder", type=Path, help="where outcomes are kept (default: nowhere)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table here")
    return parser.parse_args()


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    numbers = int(part), int(parts)
    if not 1 <= numbers[0] <= numbers[1]:
        raise ValueError(text)
    return numbers


def _unbroken(root: Path, device: str) -> FinishedSession:
    """An undisturbed session of the tiny model, with its hits recorded."""
    from tests.models.folders import make_folder

    model, cache = make_folder(root / "tiny-llama", "one_layer"), root / "cache"
    folder = root / "unbroken" / "session"
    for path, fault in ((root / "warm", ""), (folder, f"record={root / 'record'}")):
        arguments = offload_arguments(model, path, device)
        ended = run_forked(*arguments, cache=cache, errors=root / "errors", fault=fault)
        if ended.exit_code != 0:
            raise SystemExit(f"the unbroken session did not pass:\n{ended.errors}")
    return FinishedSession(folder, model, cache, device, ended)


def _hits(record: Path, session: Path) -> list[Hit]:
    """Every hit below the session's folder, numbered by site."""
    seen: Counter[tuple[str, str, str]] = Counter()
    found = []
    for line in record.read_text(encoding="utf-8").splitlines():
        moment, kind, place = line.split(" ", 2)
        if not Path(place).is_relative_to(session):
            continue
        site = moment, kind, str(Path(place).relative_to(session.parent))
        seen[site] += 1
        found.append(Hit(*site, seen[site]))
    return found


def _harm(hit: Hit, unbroken: FinishedSession, root: Path, what: str) -> Outcome:
    started = time.monotonic()
    parent = Path(tempfile.mkdtemp(dir=root))
    session, errors = parent / "session", parent / "errors"
    arguments = unbroken.arguments(session)
    fault = f"{what}@{hit}"
    first = run_forked(*arguments, cache=unbroken.cache, errors=errors, fault=fault)
    phase = last_phase(first.errors)
    try:
        assert what == "kill" or "Traceback" not in first.errors, first.errors
        if session.exists():
            assert_whole(session)
        again = run_forked(*arguments, cache=unbroken.cache, errors=errors)
        assert again.exit_code == 0, again.errors[-500:]
        assert_same_verdicts(session, unbroken)
        assert_no_step_twice(session)
        assert_whole(session)
        assert half_written(session) == []
        problem = ""
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    shutil.rmtree(parent, ignore_errors=True)
    return Outcome(hit, phase, _how(first), problem, time.monotonic() - started)


def _how(ended: Ended) -> str:
    if ended.exit_code < 0:
        return "killed"
    return f"exit {ended.exit_code}"


def _table(outcomes: list[Outcome]) -> str:
    """One row per site: number of hits, how the processes ended, and failures."""
    rows = ["| kind | place | hits | ended | same verdicts |", "|---|---|--:|---|--:|"]
    sites: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        sites.setdefault((outcome.hit.kind, outcome.hit.place), []).append(outcome)
    for (kind, place), group in sites.items():
        ended = ", ".join(f"{n} {how}" for how, n in Counter(o.ended for o in group).items())
        same = sum(not outcome.problem for outcome in group)
        rows.append(f"| {kind} | {place} | {len(group)} | {ended} | {same} |")
    phases = Counter(outcome.phase for outcome in outcomes)
    rows += ["", *(f"- {phase}: {number}" for phase, number in phases.items())]
    bad = [f"{outcome.hit}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    return "\n".join([*rows, "", f"{len(bad)} of {len(outcomes)} failed", *bad])


if __name__ == "__main__":
    raise SystemExit(main())
