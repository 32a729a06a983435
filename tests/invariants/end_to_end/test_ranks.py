"""Errors of several ranks on gloo, and torchrun."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.training_errors import ranks  # noqa: F401 - it registers the cases
from scripts.training_errors.case import CASES
from scripts.training_errors.running import ENVIRONMENT, JOB, record, study
from tapml.cli.main import main
from tapml.invariants.checking import check_trace
from tapml.invariants.invariant import Invariant, InvariantSet, write_set
from tapml.invariants.launch import collect
from tapml.invariants.precondition import ALWAYS
from tapml.invariants.trace import read_trace
from tapml.isolate.pool import Pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool([JOB], workers=2, deadline_seconds=300.0, environment=ENVIRONMENT) as found:
        yield found


def test_norms_that_part_on_tensor_parallel_ranks_are_found_by_the_papers_invariant(
    pool: Pool,
) -> None:
    """Figure 4: parameters that are not split over the ranks have equal values."""
    learned, clean, wrong = study(CASES["B3"], pool)
    assert clean.violated == 0
    (cause,) = wrong.causes
    assert cause.head.invariant in learned.invariants
    assert cause.head.invariant.text == (
        "After a step, each Parameter has equal values on all ranks, if tensor_model_parallel is "
        "False."
    )
    assert cause.first_step == 0
    assert {name.partition(".")[0] for name in cause.head.subjects} == {"norm"}


def test_a_collective_that_aborts_the_job_is_in_the_trace(pool: Pool, tmp_path: Path) -> None:
    trace = record(CASES["B16"], 3, True, pool, tmp_path)
    # The other rank is aborted as well, or sees its peer go and ends with an exception.
    assert any("died during step 0" in note for note in trace.notes)
    rule = Invariant("CollectivesAgree", {}, ALWAYS)
    (cause,) = check_trace(trace, InvariantSet("tapml-invariants/1", [], [rule])).causes
    assert "all_to_all_single" in cause.head.first.found
    assert "rank 0" in cause.head.first.found
    assert "rank 1" in cause.head.first.found


def test_ranks_that_died_are_named_on_the_command_line(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = Invariant("CollectivesAgree", {}, ALWAYS)
    write_set(InvariantSet("tapml-invariants/1", [], [rule]), tmp_path / "set")
    trace = record(CASES["DS-6089"], 3, True, pool, tmp_path)
    words = ["invariants", "check", str(tmp_path / "set"), str(trace.folder)]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert re.search(r"^note: rank [01] died during step 4: its trace in process-\d+", out, re.M)
    assert "cause 1, first in step 4" in out
    # A rank that left nothing.
    next(trace.folder.iterdir()).unlink()
    assert main(words) == 0
    out = capsys.readouterr().out
    assert re.search(r"^note: the job had 2 ranks; the trace lacks [01]$", out, re.M)
    assert "1 did not apply" in out


def test_torchrun_gives_one_trace_per_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.randn(2, 4) + dist.get_rank()).sum().backward()\n"
        "    optimizer.step()\n"
        "dist.destroy_process_group()\n"
    )
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    collected = collect([sys.executable, *command], tmp_path / "trace")
    assert collected.exit_code == 0
    assert collected.trace is not None
    assert collected.trace.ranks == (0, 1)
    assert collected.trace.steps == 3
    assert collected.trace.notes == ()
    next((tmp_path / "trace").iterdir()).unlink()
    (note,) = read_trace(tmp_path / "trace").notes
    assert note.startswith("the job had 2 ranks; the trace lacks ")
