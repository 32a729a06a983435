"""Measures the performance targets of docs/benchmarks.md: a table, and JSON with --json.

    python3 scripts/bench.py                    everything but what takes long (about half an hour)
    python3 scripts/bench.py --part replay      one part
    python3 scripts/bench.py --part size        a suite of 6 GB in little memory (half an hour);
                                                --gigabytes 0.5 for a smaller one
    python3 scripts/bench.py --part traincheck  beside TrainCheck 0.2.0 (bench_traincheck.py)
    python3 scripts/bench.py --json out.json    the rows and the machine as data

Run it in the project's environment (scripts/test.py makes it) on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, Final

sys.path[0] = str(Path(__file__).resolve().parent.parent)

PARTS: Final = (
    "runtime",
    "wire",
    "decode",
    "packed",
    "webgpu",
    "platforms",
    "watch",
    "compare",
    "invariants",
    "import",
    "carve",
    "replay",
    "oracle",
    "flat",
    "culprit",
    "distributed",
    "strategies",
    "demo",
    "resume",
)
# Only on request.
LONG_PARTS: Final = ("size", "traincheck")


def main(arguments: list[str] | None = None) -> int:
    """Measure the parts asked for; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Measure what tapml promises.")
    parser.add_argument(
        "--part",
        action="append",
        choices=(*PARTS, *LONG_PARTS),
        help="may be given several times",
    )
    parser.add_argument("--gigabytes", type=float, default=6.0, help="of --part size")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for part in options.part or PARTS:
        print(f"\n{part}", flush=True)
        measure = importlib.import_module(f"scripts.bench_{part}").measure
        measured = measure(options.gigabytes) if part == "size" else measure()
        print_table(measured)
        rows += measured
    if options.json is not None:
        data = {"machine": machine(), "rows": rows}
        options.json.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return 1 if any(row.get("met") is False for row in rows) else 0


def machine() -> dict[str, Any]:
    """The machine of the figures."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "load": os.getloadavg(),
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    """The rows of one part, a column per key."""
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "part"]
    cells = [columns] + [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
