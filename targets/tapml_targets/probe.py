"""Lists a platform's devices, or tries one, in a process that may hang or crash.

Run as ``python -m tapml_targets.probe list PLATFORM``, ``... try PLATFORM INDEX DTYPE``,
``... self-test PLATFORM INDEX PART...`` or ``... conformance PLATFORM INDEX CASE...``; the answer
is one line of JSON.
:mod:`tapml_targets.ranking` starts it with a deadline.
"""

from __future__ import annotations

import json
import operator
import os
import random
import struct
import sys
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from tapml_targets.description import fingerprint, to_plain
from tapml_targets.driver import Driver, TensorUse
from tapml_targets.errors import MismatchError, TapmlError
from tapml_targets.evaluator import LoadedLibrary
from tapml_targets.library import Library
from tapml_targets.platforms import load_driver_module, platform_part

# One product of a decode step, and a few of the launches that come with each.
ROWS: Final = 1024
COLUMNS: Final = 4096
SMALL_ROWS: Final = 8
SMALL_COLUMNS: Final = 512
LAUNCHES: Final = 8
REPEATS: Final = 5
_ENOUGH_SECONDS: Final = 1.0
# Format characters of the struct module for the ranked dtypes.
_FORMATS: Final = {"float16": "e", "float32": "f", "float64": "d"}


@dataclass(frozen=True)
class Trial:
    """How a self-test went; `milliseconds` is the best time of the large and the small products."""

    milliseconds: float


def try_driver(driver: Driver, library: Library, dtype: str) -> Trial:
    """Build and run a platform's probe, check its result, and time it.

    The time is that of one large matrix-vector product and of some small ones in a row, so that
    neither arithmetic nor launches decide alone.

    The numbers are zeros and ones with sums that every dtype holds exactly, so that a right
    result is an equal one.

    Raises
    ------
    MismatchError
        If the device computes something else.
    CompileError
        If it does not build the kernel.
    """
    with LoadedLibrary(driver, library) as loaded:
        large = _time(driver, loaded, dtype, ROWS, COLUMNS, 1)
        small = _time(driver, loaded, dtype, SMALL_ROWS, SMALL_COLUMNS, LAUNCHES)
    return Trial((large + small) * 1e3)


def _time(
    driver: Driver, loaded: LoadedLibrary, dtype: str, rows: int, columns: int, launches: int
) -> float:
    """Seconds of the quickest of some rounds of `launches` products of one size."""
    # Without numpy, which a platform's own package may do without; one row is one integer.
    generator = random.Random(0)  # noqa: S311 - test data
    bits = [generator.getrandbits(columns) for _ in range(rows + 1)]
    expected = tuple((row & bits[-1]).bit_count() for row in bits[:rows])
    kind = _FORMATS[dtype]
    matrix = b"".join(_elements(row, columns, kind) for row in bits[:rows])
    output = bytes(rows * struct.calcsize(kind))
    tensors = []
    for data, shape in (
        (matrix, (rows, columns)),
        (_elements(bits[-1], columns, kind), (columns,)),
        (output, (rows,)),
    ):
        buffer = driver.allocate(len(data))
        driver.write(buffer, 0, memoryview(data))
        tensors.append(TensorUse(buffer, 0, shape, dtype))
    best, begun = float("inf"), time.perf_counter()
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(launches):
            loaded.call("probe", tensors)
        driver.finish()
        best = min(best, time.perf_counter() - started)
        # A simulator takes seconds for one.
        if time.perf_counter() - begun > _ENOUGH_SECONDS:
            break
    found = struct.unpack(f"<{rows}{kind}", driver.read(tensors[-1].buffer, 0, len(output)))
    for tensor in tensors:
        driver.free(tensor.buffer)
    wrong = sum(map(operator.ne, found, expected))
    if wrong:
        raise MismatchError(f"its self-test kernel computed {wrong} of {rows} sums wrong")
    return best


def _elements(bits: int, count: int, kind: str) -> bytes:
    """The lowest `count` bits of a number as zeros and ones of a dtype, the highest bit first."""
    digits = f"{bits:0{count}b}".encode()
    # No byte of either element is a digit, so the second replacement finds digits alone.
    zero, one = (struct.pack(f"<{kind}", value) for value in (0, 1))
    return digits.replace(b"0", zero).replace(b"1", one)


def _answer(arguments: list[str]) -> dict[str, Any]:
    match arguments:
        case ["list", platform]:
            devices = load_driver_module(platform).list_devices()
            return {"devices": [to_plain(device) for device in devices]}
        case ["try", platform, index, dtype]:
            module: ModuleType = load_driver_module(platform)
            probe = platform_part(platform, "probe")
            description = module.list_devices()[int(index)]
            driver: Driver = module.open_device(description)
            trial = try_driver(driver, probe.probe_library(dtype), dtype)
            return {
                "fingerprint": fingerprint(description),
                "milliseconds": trial.milliseconds,
            }
        case ["self-test", platform, index, *parts]:
            return _self_test(platform, int(index), parts)
        case ["conformance", platform, index, *names]:
            from tapml_targets.conformance.running import answer

            return {"cases": answer(platform, int(index), names)}
    raise SystemExit(
        "usage: python -m tapml_targets.probe list PLATFORM | try PLATFORM INDEX DTYPE | "
        "self-test PLATFORM INDEX PART... | conformance PLATFORM INDEX CASE..."
    )


def _self_test(platform: str, index: int, parts: list[str]) -> dict[str, Any]:
    from tapml_targets.self_test.facts import to_plain as facts_to_plain
    from tapml_targets.self_test.measure import run_self_test

    module = load_driver_module(platform)
    description = module.list_devices()[index]
    found = run_self_test(module.open_device(description), parts=parts)
    return {"fingerprint": fingerprint(description), "self_test": facts_to_plain(found)}


def main() -> None:
    """Answer on the original standard output; drivers' output goes to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        answer = _answer(sys.argv[1:])
    except TapmlError as error:
        answer = {"problem": str(error), "kind": type(error).__name__}
    os.write(out, json.dumps(answer).encode() + b"\n")
    # Skips the exit handlers, in which drivers may crash.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
