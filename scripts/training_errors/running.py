"""Runs a case: right runs to learn from, its clean twin, and the error itself."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from scripts.training_errors.case import CASES, RIGHT_SEEDS, TWIN_SEED, Case
from tapml.invariants.checking import Checker, CheckReport, check_trace, report_of
from tapml.invariants.inference import Run, infer, run_of
from tapml.invariants.invariant import InvariantSet
from tapml.invariants.trace import read_trace
from tapml.isolate.death import GroupDiedError
from tapml.isolate.environment import Environment
from tapml.isolate.member import Member
from tapml.isolate.pool import Pool

JOB: Final = "scripts.training_errors.running:run_rank"
ENVIRONMENT: Final = Environment(
    # The first optimizer of a process imports torch._dynamo: two seconds of every rank.
    preload=(
        "torch",
        "torch._dynamo",
        "tapml.invariants.recording",
        "scripts.training_errors.ranks",
    ),
    variables={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
)
_LIMIT_SECONDS: Final = 120.0


def run_rank(member: Member, payload: Any) -> None:
    """One rank of a case, recorded to a folder."""
    import torch.distributed as dist

    from scripts.training_errors import ranks
    from tapml.invariants.recording import recorded_to

    del ranks
    with recorded_to(Path(payload["folder"])):
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{member.port}",
            rank=member.rank,
            world_size=member.size,
            timeout=timedelta(seconds=_LIMIT_SECONDS / 4),
        )
        CASES[payload["case"]].run(payload["seed"], payload["buggy"])


def record(case: Case, seed: int, buggy: bool, pool: Pool | None, folder: Path) -> Any:
    """The run of a case in this process, or the trace of its ranks."""
    name = f"{case.id}-{seed}{'-error' if buggy else ''}"
    if case.ranks == 1:
        from tapml.invariants.recording import recorded

        with recorded() as recording:
            case.run(seed, buggy)
        return recording.run(name)
    assert pool is not None, "a case of several ranks needs a pool"
    trace = folder / name
    trace.mkdir()
    payload = {"case": case.id, "seed": seed, "buggy": buggy, "folder": str(trace)}
    try:
        pool.group(case.ranks, JOB, payload, port=True).result()
    except GroupDiedError:
        if not (buggy and case.aborts):
            raise
    return read_trace(trace)


def study(case: Case, pool: Pool | None = None) -> tuple[InvariantSet, CheckReport, CheckReport]:
    """What is learned from right runs, and its check of the clean twin and of the error."""
    with TemporaryDirectory(prefix="training-errors-") as name:
        folder = Path(name)
        right = [record(case, seed, False, pool, folder) for seed in RIGHT_SEEDS]
        learned = infer([each if isinstance(each, Run) else run_of(each) for each in right])
        clean, wrong = (
            _checked(record(case, TWIN_SEED, buggy, pool, folder), learned)
            for buggy in (False, True)
        )
    return learned, clean, wrong


def _checked(run: Any, learned: InvariantSet) -> CheckReport:
    if not isinstance(run, Run):
        return check_trace(run, learned)
    checker = Checker(learned)
    for window in run.windows:
        checker.check(window)
    return report_of(checker, run.name, run.windows[-1].step + 1, (0,))
