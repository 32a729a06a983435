"""Counts the Python calls of ours that one batch takes, in the client and in the worker.

    python scripts/count_calls.py [--rounds 100]

One batch writes 4 KB, copies them on the device, and reads them. Every call of a function of
`tapml_rpc` or `tapml_targets` counts, in every thread; what 20 rounds take is taken off what 120
take. The server is ``tapml rpc serve`` on loopback, without keys.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "rpc_server"), str(ROOT / "targets")]

from scripts.processes import family
from scripts.wire_fuzz.server import ServerUnderTest
from tapml_rpc.client import Session, connect

FOLDER: Final = "TAPML_COUNT_CALLS"
NBYTES: Final = 4 << 10
WARM: Final = 20
_COUNTER: Final = f"""\
import collections, json, os, signal, sys, threading
folder = os.environ.get({FOLDER!r})
if folder:
    counts = collections.Counter()
    def count(frame, event, argument):
        if event == "call":
            name = frame.f_code.co_filename
            if "/tapml_rpc/" in name or "/tapml_targets/" in name:
                counts[name[name.rindex("/tapml_"):] + ":" + frame.f_code.co_qualname] += 1
    def say(*_):
        path = os.path.join(folder, str(os.getpid()))
        with open(path + ".new", "w") as file:
            # Other threads go on counting.
            json.dump(dict(counts), file)
        os.replace(path + ".new", path)
    signal.signal(signal.SIGRTMIN + 6, say)
    threading.setprofile(count)
    sys.setprofile(count)
"""


def counts(folder: Path, processes: list[int]) -> dict[int, dict[str, int]]:
    """What each of the processes has called so far; a spare worker does not answer."""
    found: dict[int, dict[str, int]] = {}
    for pid in processes:
        path = folder / str(pid)
        path.unlink(missing_ok=True)
        os.kill(pid, signal.SIGRTMIN + 6)
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        if path.exists():
            found[pid] = json.loads(path.read_text())
    return found


def batches(session: Session, rounds: int) -> None:
    """Run the batch so often."""
    source, target = session.allocate(NBYTES), session.allocate(NBYTES)
    data = bytes(NBYTES)
    for _ in range(rounds):
        with session.batch() as batch:
            session.write(source, data)
            session.copy(source, target)
            pending = batch.read(target)
        pending.result()


def count(rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """Calls of one batch by process and function."""
    (folder / "sitecustomize.py").write_text(_COUNTER)
    os.environ |= {FOLDER: str(folder), "PYTHONPATH": f"{folder}:{ROOT}:{ROOT / 'rpc_server'}"}
    exec(_COUNTER, {})  # noqa: S102 - this process, too
    with ServerUnderTest("cpu:0") as server, connect(server.line["address"]) as session:
        ours = os.getpid()
        session.fence()
        processes = list(counts(folder, [ours, *family(server.process.pid)]))
        calls = []
        for each in (WARM, WARM, WARM + rounds):
            before = counts(folder, processes)
            batches(session, each)
            after = counts(folder, processes)
            calls.append(
                {
                    pid: {name: n - before[pid].get(name, 0) for name, n in after[pid].items()}
                    for pid in processes
                }
            )
        _, few, many = calls
        found: dict[str, dict[str, float]] = {}
        for pid in processes:
            each_batch = {
                name: round((n - few[pid].get(name, 0)) / rounds, 2)
                for name, n in many[pid].items()
                # What a clock calls, and not the batch, is a few per second.
                if n - few[pid].get(name, 0) >= rounds / 2
            }
            if each_batch:
                what = "client" if pid == ours else f"process {pid}"
                found[what] = each_batch
        return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--functions", action="store_true", help="list them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found: dict[str, Any] = count(options.rounds, Path(name))
    modules: set[str] = set()
    for what, functions in found.items():
        own = {each.partition(":")[0] for each in functions}
        modules |= own
        print(f"{what}: {sum(functions.values()):.0f} calls, {len(own)} modules")
        if options.functions:
            for each in sorted(functions, key=functions.__getitem__, reverse=True):
                print(f"  {functions[each]:6.2f}  {each}")
    total = sum(sum(functions.values()) for functions in found.values())
    print(f"all processes: {total:.0f} calls, {len(modules)} modules")
    return 0


if __name__ == "__main__":
    sys.exit(main())
