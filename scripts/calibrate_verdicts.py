"""Measures the ratios of right and wrong kernels, from which tapml.verdicts.limits is derived.

    python -m scripts.calibrate_verdicts [--json FILE] [--seeds N] [--dtype NAME] [--check]

Cases are operators on random numbers, independent of any model and of the mutants that verdicts are
scored by. Each runs on LLVM and on every OpenCL device; each is also made wrong in ways real
kernels are (a shifted index, a lost term, ...). Prints, per dtype and operator class, the largest
ratio of a right kernel and the smallest of a wrong one; docs/verdicts.md holds what it printed.
With --check the exit code is 1 if a limit is nearer to a right kernel than its safety factor
allows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from scripts.calibration.kernels import open_devices
from scripts.calibration.measuring import Row, measure
from scripts.calibration.summary import missed, shortcomings, table
from tapml.compiler.compiler import Compiler

DTYPES = ("float32", "float16", "bfloat16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    parser.add_argument("--seeds", type=int, default=3, help="inputs per case (default 3)")
    parser.add_argument("--dtype", action="append", choices=DTYPES, dest="dtypes")
    parser.add_argument(
        "--check", action="store_true", help="end with 1 where a limit is too near to right kernels"
    )
    options = parser.parse_args(arguments)
    np.seterr(all="ignore")
    started = time.perf_counter()
    rows: list[Row] = []
    with Compiler() as compiler:
        devices = open_devices(compiler)
        for dtype in options.dtypes or DTYPES:
            rows += measure(dtype, devices, options.seeds)
            print(f"{dtype}: {time.perf_counter() - started:.0f} s", flush=True)
    print(table(rows))
    found = list(missed(rows))
    print(
        f"\n{len(found)} wrong kernels that neither their ratio nor a probe shows",
        *found,
        sep="\n  ",
    )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    short = shortcomings(rows) if options.check else []
    if short:
        print("\nlimits that are too near to right kernels:", *short, sep="\n  ")
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
