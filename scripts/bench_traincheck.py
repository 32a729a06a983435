"""Learning and checking beside TrainCheck 0.2.0, on traces of two scripts; asked for with --part.

TrainCheck needs an environment of its own, whose interpreter is named in ``TRAINCHECK_PYTHON``:

    python3 -m venv tc && tc/bin/pip install traincheck==0.2.0 scikit-learn torch==2.13.0+cpu
    TRAINCHECK_PYTHON=tc/bin/python python3 scripts/bench.py --part traincheck

Seconds are those of the processor, of the command and all that it starts.
"""

from __future__ import annotations

import inspect
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from scripts.bench_invariants import Gpt, Layer
from tapml.invariants.checking import Checker
from tapml.invariants.inference import infer, run_of
from tapml.invariants.trace import read_trace

# What learning must be faster by.
BAR: Final = 100.0
CNN: Final = """
import torch
from sklearn.datasets import load_digits
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3)
        self.second = nn.Conv2d(8, 16, 3)
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        return self.head(torch.flatten(x, 1))


digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
for step in range(ITERATIONS):
    x, y = images[step * 32 : step * 32 + 32], labels[step * 32 : step * 32 + 32]
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""
GPT: Final = f"""
import torch
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)
torch.manual_seed(0)


{inspect.getsource(Layer)}

{inspect.getsource(Gpt)}

data = torch.randint(0, 256, (16, 8, 65))
model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(ITERATIONS):
    optimizer.zero_grad()
    logits = model(data[step % 16, :, :-1])
    loss = functional.cross_entropy(logits.flatten(0, -2), data[step % 16, :, 1:].flatten())
    loss.backward()
    optimizer.step()
"""
SCRIPTS: Final = {"CNN on digits": (CNN, (5, 20, 50)), "GPT, 0.9 million parameters": (GPT, (5,))}


def measure() -> list[dict[str, Any]]:
    """A row for each script and length of the run; a line on standard error as it is known."""
    python = os.environ.get("TRAINCHECK_PYTHON")
    if python is None:
        raise SystemExit("set TRAINCHECK_PYTHON to an interpreter with traincheck 0.2.0")
    rows = []
    for name, (script, lengths) in SCRIPTS.items():
        for iterations in lengths:
            with tempfile.TemporaryDirectory() as folder:
                row = _row(Path(folder), Path(python), script, iterations)
            rows.append({"part": "traincheck", "name": f"{name}, {iterations} iterations", **row})
            print(rows[-1], file=sys.stderr)
    return rows


def _row(folder: Path, python: Path, text: str, iterations: int) -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(text.replace("ITERATIONS", str(iterations)), encoding="utf-8")
    theirs, ours = folder / "theirs", folder / "ours"
    tools = python.parent
    collected = cpu_seconds(
        *(tools / "traincheck-collect", "-p", script, "--models-to-track", "model"),
        *("--output-dir", theirs),
        folder=folder,
    )
    found = folder / "invariants.json"
    inferred = cpu_seconds(tools / "traincheck-infer", "-f", theirs, "-o", found, folder=folder)
    tapml = (sys.executable, "-m", "tapml.cli.main", "invariants")
    recorded = cpu_seconds(*tapml, "collect", ours, "--", sys.executable, script)
    whole = cpu_seconds(*tapml, "infer", ours, "--output", folder / "ours.json")
    trace = read_trace(ours)
    # Relations are found and imported the first time.
    infer([run_of(trace)])
    begun = time.process_time()
    run = run_of(trace)
    learned = infer([run])
    alone = time.process_time() - begun
    checker = Checker(learned)
    begun = time.process_time()
    for window in run.windows:
        checker.check(window)
    checked = time.process_time() - begun
    return {
        "theirs_collect_s": round(collected, 2),
        "theirs_infer_s": round(inferred, 2),
        "theirs_invariants": len(found.read_text("utf-8").splitlines()),
        "theirs_bytes": _size(theirs),
        "tapml_collect_s": round(recorded, 2),
        "tapml_command_s": round(whole, 2),
        "tapml_infer_s": round(alone, 4),
        "tapml_check_s": round(checked, 4),
        "tapml_invariants": len(learned.invariants),
        "tapml_rows": trace.rows,
        "tapml_bytes": _size(ours),
        "ratio": round(inferred / alone, 1),
        "ratio_of_commands": round(inferred / whole, 1),
        "at_least": BAR,
        "met": inferred / alone >= BAR,
    }


def cpu_seconds(*command: str | Path, folder: Path | None = None, may_fail: bool = False) -> float:
    """CPU seconds of a command and its children, run in a folder: it may leave logs there."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # TrainCheck starts the `python` of the path.
    path = os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
    done = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    if done.returncode and not may_fail:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
