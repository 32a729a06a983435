"""Walks over PyTorch's public functions: each is right, or refused by its name, on every device.

The samples are PyTorch's own, of the list that its tests are made of (`op_db`: functions of torch,
torch.nn.functional, torch.special, torch.linalg and methods of tensors). Each is imported, run on
the processor and on the devices, and compared with PyTorch, number by number. What a run found is
kept in --file, and a later one takes up what is missing. It needs `pip install expecttest`.

    python3 scripts/walk_operations.py --file walk.json                     the processor alone
    python3 scripts/walk_operations.py --file walk.json --devices opencl:0 vulkan:0 webgpu:0
    python3 scripts/walk_operations.py --file walk.json --only 'linalg.*' --again wrong broken
    python3 scripts/walk_operations.py --file walk.json --show wrong broken

Its exit code is 1 if something is wrong or broken, 2 for bad input, 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.kept_study import run_kept
from tapml.durable.files import write_json
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tapml.isolate.worker import Worker
from tapml_targets.errors import InputError, TapmlError

_OPEN: Final = "scripts.walk_operations_job:Walker"
_WALK: Final = "scripts.walk_operations_job:walk"
_NAMES: Final = "scripts.walk_operations_job:names"
_ENVIRONMENT: Final = Environment(
    variables={"OMP_NUM_THREADS": "1"}, preload=("scripts.walk_operations_job",)
)
_DTYPES: Final = ("float32", "int64", "bool")
_KNOWN_DTYPES: Final = (
    *_DTYPES, "float16", "bfloat16", "float64", "complex64", "uint8", "int8", "int16", "int32",
)  # fmt: skip
WORDS: Final = ("pass", "refused", "wrong", "broken")
"""What may come of a sample, mildest first."""
Found = dict[str, dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Walk what is missing, and say what came of it."""
    options = _parse(arguments)
    return run_kept("walk_operations", lambda: _walk(options))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, required=True, help="what is known, as JSON")
    parser.add_argument("--devices", nargs="+", default=[], metavar="NAME", help="(none)")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="of these names"
    )
    parser.add_argument(
        "--dtypes", nargs="+", default=_DTYPES, choices=_KNOWN_DTYPES, metavar="DTYPE",
        help=f"({' '.join(_DTYPES)})",
    )  # fmt: skip
    parser.add_argument("--samples", type=int, default=3, metavar="N", help="of each dtype (3)")
    parser.add_argument(
        "--again", nargs="+", default=[], choices=WORDS, help="those of which this came once more"
    )
    parser.add_argument("--show", nargs="+", choices=WORDS, help="walk nothing: list these")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin none after so many")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="(1)")
    parser.add_argument("--deadline", type=float, default=120.0, metavar="SECONDS", help="(120)")
    return parser.parse_args(arguments)


def _walk(options: argparse.Namespace) -> int:
    kept: Found = json.loads(options.file.read_text("utf-8")) if options.file.exists() else {}
    if options.show:
        for key, found in sorted(kept.items()):
            for line in lines(key, found, options.show):
                print(line)
    else:
        _make(options, kept)
    counts = Counter(word_of(each) for each in kept.values())
    print("; ".join(f"{counts[word]} {word}" for word in (*WORDS, "no sample") if counts[word]))
    return int(any(counts[word] for word in ("wrong", "broken")))


def _make(options: argparse.Namespace, kept: Found) -> None:
    until = time.monotonic() + 60 * options.minutes
    with Pool([_NAMES, _OPEN, _WALK], environment=_ENVIRONMENT) as pool:
        wanted = [
            (name, dtype)
            for dtype in options.dtypes
            for name in pool.submit(_NAMES).result()
            if any(fnmatchcase(name, pattern) for pattern in options.only)
        ]
        if not wanted:
            raise InputError(f"no function of PyTorch's list is called {' '.join(options.only)}")
        left = iter(
            [
                each
                for each in wanted
                if not _known(kept.get(" ".join(each)), options.devices)
                or word_of(kept[" ".join(each)]) in options.again
            ]
        )
        writing = Lock()

        def work() -> None:
            """Take one after the other in a process that ends with what breaks it."""
            worker: Worker | None = None
            while time.monotonic() < until:
                with writing:
                    name, dtype = next(left, ("", ""))
                if not name:
                    return
                if worker is None:
                    worker = pool.worker(_OPEN, options.devices, deadline_seconds=options.deadline)
                asked = {
                    "name": name, "dtype": dtype, "samples": options.samples,
                    "odd": dtype.startswith("float"),
                }  # fmt: skip
                found: dict[str, Any] = {"devices": options.devices}
                try:
                    found["samples"] = worker.call(_WALK, asked)
                except TapmlError as error:  # its process died, or took too long
                    if pool.closed:
                        return
                    ended = f"broken: {' '.join(str(error).split())[:300]}"
                    found["samples"] = [{"sample": "its process", "found": {"cpu": ended}}]
                    worker.close()
                    worker = None
                key = f"{name} {dtype}"
                with writing:
                    kept[key] = found
                    print(f"{key}: {word_of(found)}", flush=True)
                    for line in lines(key, found, WORDS[1:]):
                        print(f"    {line}", flush=True)
                    write_json(options.file, kept)

        with ThreadPoolExecutor(options.workers) as threads:
            try:
                for each in [threads.submit(work) for _ in range(options.workers)]:
                    each.result()
            finally:
                # After Ctrl-C the threads would go on to the last operation.
                pool.close()


def _known(found: Mapping[str, Any] | None, devices: Sequence[str]) -> bool:
    return found is not None and set(devices) <= set(found["devices"])


def word_of(found: Mapping[str, Any]) -> str:
    """The gravest word of an entry's samples."""
    words = [
        each.partition(":")[0] for sample in found["samples"] for each in sample["found"].values()
    ]
    return max(words, key=WORDS.index, default="no sample")


def lines(key: str, found: Mapping[str, Any], words: Sequence[str]) -> Iterator[str]:
    """Of an entry's samples those of which one of `words` came, one a line."""
    for sample in found["samples"]:
        for device, said in sample["found"].items():
            if said.partition(":")[0] in words:
                yield f"{key} {sample['sample']} on {device}: {said}"


if __name__ == "__main__":
    raise SystemExit(main())
