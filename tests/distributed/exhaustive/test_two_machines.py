"""Ranks of one run on two machines: two network namespaces that a wire connects, within TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from distributed import Security

_JOB = """
import os
import torch
import torch.distributed as dist
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

def batch():
    return torch.randn(8, 4)

def step(model, batch, optimizer):
    optimizer.zero_grad()
    {fault}
    model(batch).square().mean().backward()
    optimizer.step()
"""
_PYTHON = sys.executable
_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("ip") is not None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def machines(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """A scheduler and a worker on one machine, a worker on the other.

    Gives the command that runs a program on the first machine, and the environment there.
    """
    if not _ROOT:
        pytest.skip("network namespaces need root and ip")
    folder = tmp_path_factory.mktemp("machines")
    names = [f"tapml{os.getpid()}{end}" for end in "ab"]
    temporary = Security.temporary()
    files = {"ca-file": temporary.tls_ca_file}
    for role in ("scheduler", "worker", "client"):
        files |= {
            f"{role}__cert": getattr(temporary, f"tls_{role}_cert"),
            f"{role}__key": getattr(temporary, f"tls_{role}_key"),
        }
    environment = dict(os.environ) | {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true"}
    for name, text in files.items():
        path = folder / name
        path.write_text(text)
        environment[f"DASK_DISTRIBUTED__COMM__TLS__{name.upper().replace('-', '_')}"] = str(path)
    with ExitStack() as ends:
        for name in names:
            _ip("netns", "add", name)
            ends.callback(_ip, "netns", "delete", name)
        _ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", names[1])
        _ip("link", "set", names[1], "netns", names[1])
        for place, name in enumerate(names, 1):
            inside = ("-n", name)
            _ip(*inside, "addr", "add", f"10.213.7.{place}/24", "dev", name)
            _ip(*inside, "link", "set", name, "up")
            _ip(*inside, "link", "set", "lo", "up")
        command = ["ip", "netns", "exec"]
        address = "tls://10.213.7.1:8786"
        programs = [
            (names[0], ["scheduler", "--host", "tls://10.213.7.1:8786", "--no-dashboard"]),
            *(
                (name, ["worker", address, "--host", f"tls://10.213.7.{place}", "--no-dashboard"])
                for place, name in enumerate(names, 1)
            ),
        ]
        for name, words in programs:
            log = ends.enter_context((folder / f"{name}-{words[0]}.log").open("wb"))
            more = ["--nthreads", "1", "--resources", "ranks=2"] if words[0] == "worker" else []
            process = subprocess.Popen(
                [
                    *command,
                    name,
                    _PYTHON,
                    "-m",
                    "distributed.cli.dask_" + words[0],
                    *words[1:],
                    *more,
                ],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
            ends.callback(process.wait, 20)
            ends.callback(process.terminate)
        time.sleep(8)
        yield (
            [*command, names[0], _PYTHON, "-m", "tapml.cli.main", "distributed", "check"],
            environment,
        )


def _check(
    machines: tuple[list[str], dict[str, str]], folder: Path, fault: str
) -> subprocess.CompletedProcess[str]:
    job = folder / "job.py"
    job.write_text(_JOB.format(fault=fault))
    command, environment = machines
    options = ["--world", "4", "--engine", "ddp", "--deadline", "15"]
    return subprocess.run(
        [*command, str(job), *options, "--workers", "tls://10.213.7.1:8786"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("", 0, "ddp x 4  equal"),
        ("if dist.get_rank() == 3: os._exit(7)", 1, "ddp x 4: crash. Rank 3 exited with code 7"),
        ("if dist.get_rank() == 1: import time; time.sleep(99)", 1, "rank 1 does not reach"),
    ],
)
def test_ranks_on_two_machines_are_as_on_one(
    machines: tuple[list[str], dict[str, str]], tmp_path: Path, fault: str, code: int, said: str
) -> None:
    found = _check(machines, tmp_path, fault)

    assert said in found.stdout, found.stdout + found.stderr
    assert found.returncode == code
