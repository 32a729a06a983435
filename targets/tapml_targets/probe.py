"""Asks a platform for its devices, or tries one, in a process that may hang or die of it.

Run as ``python -m tapml_targets.probe list PLATFORM`` or ``... try PLATFORM INDEX DTYPE``; the
answer is one line of JSON. :mod:`tapml_targets.ranking` starts it with a deadline.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np

from tapml_targets.description_format import to_plain
from tapml_targets.driver import Driver, TensorUse
from tapml_targets.errors import MismatchError, TapmlError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library import Library
from tapml_targets.platforms import check_platform, load_driver_module

ROWS: Final = 512
COLUMNS: Final = 1024
REPEATS: Final = 5


@dataclass(frozen=True)
class Trial:
    """How a self-test went; `milliseconds` is the best of its timed launches."""

    milliseconds: float


def has_probe(platform: str) -> bool:
    """Whether the platform brings a kernel to try its devices with."""
    return importlib.util.find_spec(f"tapml_targets.{check_platform(platform)}.probe") is not None


def try_driver(driver: Driver, library: Library, dtype: str) -> Trial:
    """Build and run a platform's probe, check its result, and time it.

    The numbers are zeros and ones with sums that every dtype holds exactly, so that a right
    result is an equal one.

    Raises
    ------
    MismatchError
        If the device computes something else.
    CompileError
        If it does not build the kernel.
    """
    generator = np.random.default_rng(0)
    kind = np.dtype(dtype)
    matrix = generator.integers(0, 2, (ROWS, COLUMNS)).astype(kind)
    vector = generator.integers(0, 2, COLUMNS).astype(kind)
    expected = (matrix.astype(np.int64) @ vector.astype(np.int64)).astype(kind)
    with LoadedLibrary(driver, library) as loaded:
        tensors = []
        for array in (matrix, vector, np.zeros(ROWS, kind)):
            buffer = driver.allocate(array.nbytes)
            driver.write(buffer, 0, memoryview(array.tobytes()))
            tensors.append(TensorUse(buffer, 0, array.shape, dtype))
        best = float("inf")
        for _ in range(REPEATS):
            started = time.perf_counter()
            loaded.call("probe", tensors)
            driver.finish()
            best = min(best, time.perf_counter() - started)
        found = np.frombuffer(driver.read(tensors[-1].buffer, 0, expected.nbytes), kind)
        for tensor in tensors:
            driver.free(tensor.buffer)
    wrong = int(np.count_nonzero(found != expected))
    if wrong:
        raise MismatchError(f"its self-test kernel computed {wrong} of {ROWS} sums wrong")
    return Trial(best * 1e3)


def _answer(arguments: list[str]) -> dict[str, Any]:
    match arguments:
        case ["list", platform]:
            devices = load_driver_module(platform).list_devices()
            return {"devices": [to_plain(device) for device in devices]}
        case ["try", platform, index, dtype]:
            module: ModuleType = load_driver_module(platform)
            probe = importlib.import_module(f"tapml_targets.{platform}.probe")
            description = module.list_devices()[int(index)]
            driver: Driver = module.open_device(description)
            trial = try_driver(driver, probe.probe_library(dtype), dtype)
            return {
                "device": to_plain(description),
                "milliseconds": trial.milliseconds,
            }
    raise SystemExit(
        "usage: python -m tapml_targets.probe list PLATFORM | try PLATFORM INDEX DTYPE"
    )


def main() -> None:
    """Answer on what was the standard output; drivers may print, so theirs goes to the log."""
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        answer = _answer(sys.argv[1:])
    except TapmlError as error:
        answer = {"problem": str(error), "kind": type(error).__name__}
    os.write(out, json.dumps(answer).encode() + b"\n")
    # Drivers crash in their exit handlers often enough; the answer is given.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
