"""Model-wise runs of each strategy, and bytes that hybrid runs copy between host and device.

``bisect``: the demo model, clean and with operators whose carved tests all pass and with which the
whole model fails (:mod:`tests.offload.hidden_faults`), one by one and in halves. ``moved``: bytes
between host and device for several placements beside the fewest that do.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from math import ceil, log2
from pathlib import Path
from typing import Any, Final

from scripts.carved_model import MODEL, cache_in
from tapml.offload.session import OffloadSession
from tapml.plan import format as plan_format
from tapml.runs.journal import JOURNAL
from tapml.session.folder import FINISHED, PLAN
from tapml.session.settings import Order, RunOptions, Settings, Strategy
from tapml_rpc.local import open_local
from tapml_targets.target import Target
from tests.offload.hidden_faults import right_where_tests_look
from tests.offload.plants import Plant, plant

# Enough for a test of every operator, not for later decode steps.
BUDGET_BYTES: Final = 2 << 20
# The last projection of a decode step, and the last of its attention's.
FAULTS: Final = ("matmul_transposed_8", "matmul_2")
_STRATEGIES: Final[tuple[Strategy, ...]] = ("one-by-one", "bisect")
_PLACEMENTS: Final[tuple[tuple[str, Order, tuple[str, ...]], ...]] = (
    ("each operator in graph order", "graph", ()),
    ("each operator backwards", "reverse", ()),
    ("each operator, most used first", "call-sites", ()),
    ("products of matrices alone", "graph", ("matmul*",)),
    ("every second name", "graph", ("*_[2468]",)),
)


def measure(device: str = "opencl") -> list[dict[str, Any]]:
    """Measure with a separate cache."""
    with tempfile.TemporaryDirectory() as folder, cache_in(Path(folder) / "cache") as cache:
        base = Path(folder) / "base"
        settings = Settings(MODEL, "opencl", device=device, budget_bytes=BUDGET_BYTES)
        OffloadSession.create(base, settings).run(options=RunOptions(strategy="bisect"))
        _forget_model_runs(base)
        rows = []
        for faults in ((), FAULTS[:1], FAULTS):
            _plant(base, faults, cache, device)
            rows += [_strategy_row(base, faults, strategy) for strategy in _STRATEGIES]
        _plant(base, (), cache, device)
        return rows + [_moved_row(base, *placement) for placement in _PLACEMENTS]


def _strategy_row(base: Path, faults: Sequence[str], strategy: Strategy) -> dict[str, Any]:
    report = _run(base, RunOptions(strategy=strategy, keep_going=True))
    failed = {each["name"] for each in report["operators"] if each["state"] == "failed"}
    if failed != set(faults):
        raise RuntimeError(f"{strategy} found {sorted(failed)} where {faults} are wrong")
    found = report["strategy"]
    seconds = sum(each["seconds"].get("model validation", 0.0) for each in report["operators"])
    row: dict[str, Any] = {
        "part": "bisect",
        "name": f"{strategy}, {len(faults) or 'no'} wrong of {len(report['operators'])}",
        "model_runs": found["model_runs"],
        "promised": found["promised"],
        "seconds": round(seconds, 2),
    }
    if strategy == "bisect" and not faults:
        most = ceil(log2(len(report["operators"]))) + 1
        return row | {"at_most": most, "met": found["model_runs"] <= most}
    return row | {"at_most": found["promised"], "met": found["model_runs"] <= found["promised"]}


def _moved_row(base: Path, name: str, order: Order, only: tuple[str, ...]) -> dict[str, Any]:
    report = _run(base, RunOptions(order=order, only=only))
    moved = dict(report["moved_bytes"])
    weights = moved.pop("weights")
    total = sum(each["moved"] for each in moved.values())
    fewest = sum(each["minimum"] for each in moved.values())
    return {
        "part": "moved",
        "name": name,
        "model_runs": report["strategy"]["model_runs"],
        "moved": total,
        "minimum": fewest,
        "weights": weights["moved"],
        "at_most": fewest,
        "met": (total, weights["moved"]) == (fewest, weights["minimum"]),
    }


def _run(base: Path, options: RunOptions) -> dict[str, Any]:
    """The report of a run in a copy of the session."""
    with tempfile.TemporaryDirectory() as folder:
        session = shutil.copytree(base, Path(folder) / "session")
        return OffloadSession.open(session).run(options=options).report


def _plant(base: Path, faults: Sequence[str], cache: Path, device: str) -> None:
    """Fill the cache with wrong Libraries for `faults` and right ones for all others."""
    right = cache.with_name("right")
    if right.exists():
        shutil.rmtree(cache)
        shutil.copytree(right, cache)
    else:
        shutil.copytree(cache, right)
    if not faults:
        return
    plan = plan_format.unpack((base / FINISHED / PLAN).read_bytes())
    with open_local(device) as session:
        target = Target("opencl", limits=session.device.limits)
    for name in faults:
        change = right_where_tests_look(base / "suite", name)
        plant(Plant(name, "", change, ""), plan.operators[name], target, cache)


def _forget_model_runs(session: Path) -> None:
    """Delete the model-wise results: every strategy begins with validated operators only."""
    with contextlib.closing(sqlite3.connect(session / JOURNAL)) as connection:
        connection.execute("DELETE FROM result WHERE stage = 'model'")
        connection.commit()
