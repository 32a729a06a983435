"""What the strategies cost in model-wise runs, and what hybrid runs move between host and device.

``bisect``: the demo model, clean and with operators whose carved tests all pass and with which the
whole model fails (:mod:`tests.offload.hidden_faults`), one by one and in halves. ``moved``: bytes
between host and device for several placements beside the fewest that do.

Run it alone with ``python -m scripts.bench_strategies``, or through ``scripts/bench.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from math import ceil, log2
from pathlib import Path
from typing import Any, Final

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tapml.graph import plan_format  # noqa: E402
from tapml.offload.finished_folder import FINISHED, PLAN  # noqa: E402
from tapml.offload.session import JOURNAL, OffloadSession  # noqa: E402
from tapml.offload.settings import Order, RunOptions, Settings, Strategy  # noqa: E402
from tapml_rpc.local import open_local  # noqa: E402
from tapml_targets.target import Target  # noqa: E402
from tests.offload.hidden_faults import right_where_tests_look  # noqa: E402
from tests.offload.plants import Plant, plant  # noqa: E402

MODEL: Final = "pydoc-llama"
# Every operator has a test; later decode steps have none.
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
    """Run all of it on a cache of its own."""
    with tempfile.TemporaryDirectory() as folder, _own_cache(Path(folder) / "cache") as cache:
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
    """Have the cache hold wrong Libraries for these operators, right ones for all others."""
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
    """Every strategy begins with operators that are validated and a model that is not."""
    with contextlib.closing(sqlite3.connect(session / JOURNAL)) as connection:
        connection.execute("DELETE FROM verdict WHERE stage = 'model'")
        connection.commit()


@contextlib.contextmanager
def _own_cache(folder: Path) -> Iterator[Path]:
    before = os.environ.get("TAPML_CACHE_DIR")
    os.environ["TAPML_CACHE_DIR"] = str(folder)
    try:
        yield folder
    finally:
        del os.environ["TAPML_CACHE_DIR"]
        if before is not None:
            os.environ["TAPML_CACHE_DIR"] = before


if __name__ == "__main__":
    for each in measure():
        print(json.dumps(each))
