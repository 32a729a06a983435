"""Cost of checking distributed training: a job, cold, and one model under TorchRec's settings."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

from tapml.distributed.checking import check, open_pool
from tapml.distributed.fuzzing.generating import generate
from tapml.distributed.fuzzing.genome import Recommender
from tapml.distributed.fuzzing.source import source_of
from tapml.distributed.settings_space import WORLDS

JOB_BAR: Final = 15.0
PAIR_BAR: Final = 75.0
PAIR_CPU_BAR: Final = 100.0
_JOB: Final = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))

def batch():
    return {"x": torch.randn(48, 16), "y": torch.randn(48, 8)}

def step(model, batch, optimizer):
    optimizer.zero_grad()
    (model(batch["x"]) - batch["y"]).square().mean().backward()
    optimizer.step()
"""


def measure() -> list[dict[str, Any]]:
    """The command on a small job, then a model of D3's table I under all settings that run."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [_cold(Path(folder))]
        if find_spec("torchrec") is not None:
            rows.append(_pair(Path(folder)))
    return rows


def _cold(folder: Path) -> dict[str, Any]:
    job = folder / "job.py"
    job.write_text(_JOB, encoding="utf-8")
    started, before = time.monotonic(), _cpu_seconds()
    command = [sys.executable, "-c", "from tapml.cli.start import main; raise SystemExit(main())"]
    subprocess.run(
        [*command, "distributed", "check", str(job), "--world", "1,2,4"],
        check=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    seconds = time.monotonic() - started
    return _row(
        "a job on 1, 2 and 4 ranks, DDP and FSDP2, cold", 6, seconds, before, seconds <= JOB_BAR
    )


def _pair(folder: Path) -> dict[str, Any]:
    """A model whose tables are summed: TorchRec's means in a grid are wrong."""
    genomes = (generate("dlrm", 0, index, None, mixing=False) for index in count(0, 2))
    genome = next(each for each in genomes if isinstance(each, Recommender) and not each.mean)
    job = folder / "tables.py"
    job.write_text(source_of(genome, "A model of table I."), encoding="utf-8")
    started, before = time.monotonic(), _cpu_seconds()
    options = {"sharder": ["EBCS", "quantized"]}
    with open_pool(["torchrec"]) as pool:
        found = check(
            job,
            worlds=WORLDS,
            engines=["torchrec"],
            options=options,
            deadline_seconds=300,
            pool=pool,
        )
    outcomes = Counter(str(each.outcome) for each in found.results)
    said = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
    seconds = time.monotonic() - started
    met = seconds <= PAIR_BAR or _cpu_seconds() - before <= PAIR_CPU_BAR
    what = f"a model of table I, 2,400 samples, TorchRec ({said}; one device is two more)"
    return _row(what, len(found.results) + 2, seconds, before, met)


def _row(what: str, settings: int, seconds: float, before: float, met: bool) -> dict[str, Any]:
    return {
        "part": "distributed",
        "what": what,
        "settings": settings,
        "seconds": round(seconds, 1),
        "CPU seconds": round(_cpu_seconds() - before, 1),
        "met": met,
    }


def _cpu_seconds() -> float:
    """Of this process and the children it has waited for."""
    spent = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        spent += used.ru_utime + used.ru_stime
    return spent
