"""Harm checks of distributed training: kill them, and let their ranks die or hang.

    python3 scripts/harm_distributed.py --runs 50     ranks that die or hang, in worlds 2, 3 and 4
    python3 scripts/harm_distributed.py --kills 20    SIGKILL at moments of chance, then resume

The bars: no run ends later than its deadline and two seconds, each is called a crash or a hang,
and a check that was killed ends, when it is run again, in the results of one that was not. No
process of a check outlives it.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

# The project's root instead of this folder, whose test.py would hide the standard library's.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

GRACE_SECONDS: Final = 2.0
DEADLINE_SECONDS: Final = 4.0
FAULTS: Final = {
    "raises": 'raise ValueError("a bad sample")',
    "exits": "os._exit(7)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "is stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "aborts": "os.abort()",
    "sleeps": "time.sleep(600)",
    "holds the interpreter": "re.match('(a+)+b', 'a' * 60)",
    "skips the step": "return True",
    "calls another collective": "dist.all_gather_object([None] * dist.get_world_size(), 1)",
}
_MARK: Final = "TAPML_HARMED_BY"
_MARKED: Final = {**os.environ, _MARK: str(os.getpid())}
_JOB: Final = """
import os, re, signal, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

def batch():
    return torch.randn(12, 4)

def distribute(model, rank, world):
    return DistributedDataParallel(model)

def step(model, batch, optimizer):
    if dist.get_world_size() > 1:
        dist.all_reduce(torch.zeros(1))
        if harm():
            return
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()

def harm():
    if dist.get_rank() == {rank}:
        {fault}
"""


def main() -> int:
    """Do what was asked for; exit with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=0, metavar="N", help="that die or hang")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="of the command")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and ranks")
    arguments = parser.parse_args()
    if not arguments.runs and not arguments.kills:
        parser.error("say how many: --runs N or --kills N")
    chance = random.Random(arguments.seed)  # noqa: S311
    with tempfile.TemporaryDirectory() as folder:
        missed = dead_runs(Path(folder), arguments.runs, chance) if arguments.runs else 0
        missed += killed_checks(Path(folder), arguments.kills, chance) if arguments.kills else 0
    return 1 if missed else 0


def dead_runs(folder: Path, count: int, chance: random.Random) -> int:
    """Run a setting with a fault, `count` times; how many missed a bar."""
    from tapml.distributed.checking import check, open_pool
    from tapml.runs.events import Event, PhaseEnded

    ended = 0.0

    def watch(event: Event) -> None:
        nonlocal ended
        if isinstance(event, PhaseEnded) and event.name == "one device":
            ended = time.monotonic()

    latest, missed = 0.0, 0
    with open_pool() as pool:
        for number in range(count):
            name = list(FAULTS)[number % len(FAULTS)]
            world = chance.choice((2, 3, 4))
            rank = chance.randrange(world)
            job = folder / "dead.py"
            job.write_text(_JOB.format(rank=rank, fault=FAULTS[name]), encoding="utf-8")
            found = check(
                job,
                worlds=[world],
                engines=["own"],
                deadline_seconds=DEADLINE_SECONDS,
                watcher=watch,
                pool=pool,
            )
            seconds = time.monotonic() - ended
            late = seconds - DEADLINE_SECONDS
            (result,) = found.results
            is_named = str(result.outcome) in ("crash", "hang")
            if late > GRACE_SECONDS or not is_named:
                missed += 1
            latest = max(latest, late)
            named = "named" if result.ranks == (rank,) else f"ranks {result.ranks} are blamed"
            print(
                f"[{number + 1}/{count}] rank {rank} of {world} {name}: {result.outcome} after "
                f"{seconds:.1f} s, {named}",
                flush=True,
            )
    print(
        f"{count} runs, {missed} missed a bar; the last ended {latest:+.2f} s from its deadline of "
        f"{DEADLINE_SECONDS:g} s"
    )
    return missed


def killed_checks(folder: Path, count: int, chance: random.Random) -> int:
    """Kill a command at moments of chance and run it again, until `count` kills; misses."""
    job = folder / "killed.py"
    job.write_text(_JOB.format(rank=-1, fault="pass"), encoding="utf-8")
    started = time.monotonic()
    wanted = _outcomes(_finish(job, folder / "whole"))
    whole = time.monotonic() - started
    killed = missed = round_ = 0
    while killed < count:
        round_ += 1
        kept = folder / f"kept{round_}"
        while killed < count:
            process = _start(job, kept)
            try:
                process.wait(chance.uniform(0.3, 1.1) * whole)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
        said = _outcomes(_finish(job, kept))
        left = _left_over()
        if said != wanted or left:
            missed += 1
            print(f"folder {round_}: {said} instead of {wanted}; processes left: {left}")
    print(f"{killed} kills in {round_} folders, {missed} ended otherwise than the unbroken check")
    return missed


def _command(job: Path, kept: Path) -> list[str]:
    return [
        *(sys.executable, "-c", "from tapml.cli.start import main; raise SystemExit(main())"),
        *("distributed", "check", str(job), "--world", "1,2,4", "--engine", "ddp,own"),
        *("--folder", str(kept), "--json"),
    ]


def _start(job: Path, kept: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _command(job, kept), env=_MARKED, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _finish(job: Path, kept: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(_command(job, kept), env=_MARKED, check=False, capture_output=True)


def _outcomes(ended: subprocess.CompletedProcess[bytes]) -> list[object]:
    import json

    if ended.returncode not in (0, 1):
        return [ended.returncode, ended.stderr.decode()[-300:]]
    results = json.loads(ended.stdout)["results"]
    return [
        ended.returncode,
        *((each["setting"], each["outcome"], each["compared"]) for each in results),
    ]


def _left_over() -> list[int]:
    """Processes of killed commands; they get two seconds to end."""
    mark = f"{_MARK}={_MARKED[_MARK]}".encode()
    until = time.monotonic() + GRACE_SECONDS
    while True:
        found = []
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                try:
                    variables = (each / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if mark in variables:
                    found.append(int(each.name))
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)


if __name__ == "__main__":
    raise SystemExit(main())
