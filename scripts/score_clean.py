"""Replays right kernels and counts how many are accused: goal 0 of 10,000 tests.

    python3 scripts/score_clean.py                     10,000 tests and a few more
    python3 scripts/score_clean.py --count 2000 --json out.json

The shipped model and random-weight models of several families and seeds are carved and replayed
with the default policy: float32 and float16, on every OpenCL driver of this machine that has the
dtype; the shipped model's operators in bfloat16 on the CPU as well, which has it. Every test that
does not pass is printed in full. Run it in the project's environment (scripts/test.py makes it).
Ctrl-C prints what there is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.bench import print_table
from scripts.bfloat16_tests import open_bfloat16
from scripts.mutants.subject import Device, Subject, carve_suite, open_subject
from tapml.oracles.probing import is_probe
from tapml.replaying.replayer import replay_operator
from tapml.replaying.results import ReplayResult
from tapml.session.settings import Settings
from tapml.verdicts.operator_class import traits_of
from tapml_targets.driver import DeviceDescription
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.ranking import find_device, rank_devices
from tests.models.folders import make_folder

SHIPPED: Final = "pydoc-llama"
# Families, shapes and rotary embeddings that lead to different operators.
KINDS: Final = (
    "float32", "qwen3", "biases", "mistral_window", "no_grouped_queries", "qwen2", "wide_head",
    "rope_llama3", "one_kv_head", "tied",
)  # fmt: skip
DTYPES: Final = ("float32", "float16")
# On a busy machine a client's wait for its server may time out.
_ATTEMPTS: Final = 3


@dataclass
class Tally:
    """The results of one model, dtype and driver."""

    model: str
    dtype: str
    driver: str
    probes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=dict)
    accused: list[str] = field(default_factory=list)

    @property
    def tests(self) -> int:
        """How many carved tests were replayed."""
        return self.counts.total() - self.probes

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        statuses = ("pass", "degraded", "fail", "not run")
        return {
            "model": self.model,
            "dtype": self.dtype,
            "driver": self.driver,
            "tests": self.tests,
            "probes": self.probes,
            **{status: self.counts[status] for status in statuses},
            "largest / limit": round(max(self.largest.values(), default=0.0), 3),
        }

    def add(self, result: ReplayResult, classes: tuple[str, ...]) -> None:
        """Count one test."""
        verdict = result.verdict
        self.probes += is_probe(result.test)
        self.counts[verdict.status] += 1
        if verdict.status != "pass":
            self.accused.append(f"{verdict.status}: {result.test}: {verdict.reason}")
        for output, operator_class in zip(verdict.outputs, classes, strict=False):
            if lookup(output.dtype).is_float:
                name = f"{output.dtype} {operator_class}"
                relative = output.ratio / output.passing
                self.largest[name] = max(self.largest.get(name, 0.0), relative)


def main(arguments: list[str] | None = None) -> int:
    """Replay; 0 if at most `--allowed` tests do not pass, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="least number of tests")
    parser.add_argument("--allowed", type=int, default=5, help="most that may not pass")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as data")
    options = parser.parse_args(arguments)
    tallies: list[Tally] = []
    try:
        for tally in _tallies(options.count):
            tallies.append(tally)
            print_table([tally.row()])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except TapmlError as error:
        _print(tallies)
        print(f"scripts/score_clean.py: {error}", file=sys.stderr)
        return error.exit_code
    _print(tallies)
    if options.json is not None:
        data = [
            {**tally.row(), "largest": tally.largest, "accused": tally.accused} for tally in tallies
        ]
        options.json.write_text(json.dumps(data, indent=1), encoding="utf-8")
    if sum(tally.tests for tally in tallies) < options.count:
        return 130
    return 1 if sum(len(tally.accused) for tally in tallies) > options.allowed else 0


def _tallies(least: int) -> Iterator[Tally]:
    """Tally after tally until there are `least` tests: the shipped model, then random ones."""
    done = 0
    with tempfile.TemporaryDirectory(prefix="tapml-clean-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        devices = [
            (dtype, stack.enter_context(Device(description, folder / "cache")))
            for dtype in DTYPES
            for description in _drivers(dtype)
        ]
        for settings, name in _models(folder):
            for dtype in DTYPES:
                users = [device for known, device in devices if known == dtype]
                if not users:
                    continue
                suite = folder / f"{name}-{dtype}"
                carve_suite(Settings(**{**settings, "target": "opencl", "dtype": dtype}), suite)
                for device in users:
                    with open_subject(suite, device.description) as subject:
                        tally = _replay(subject, device, name, dtype)
                    done += tally.tests
                    yield tally
            if name == SHIPPED:
                processor = stack.enter_context(Device(find_device("cpu"), folder / "cache"))
                with open_bfloat16(folder / f"{name}-float32", processor.description) as subject:
                    tally = _replay(subject, processor, name, "bfloat16")
                done += tally.tests
                yield tally
            if done >= least:
                return


def _drivers(dtype: str) -> list[DeviceDescription]:
    """OpenCL devices that compute in `dtype`, without checkers."""
    return [
        device.description
        for device in rank_devices("opencl", dtype)
        if not device.problem and device.description.device_type != "checker"
    ]


def _models(folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Settings and names: the shipped model, then random weights with different seeds."""
    yield {"model": SHIPPED}, SHIPPED
    for seed in count():
        for kind in KINDS:
            name = f"{kind}-{seed}"
            chance = random.Random(name)  # noqa: S311 - a draw, no secret
            # The shortest context of them is 24 rows.
            lengths = (chance.randint(2, 8), chance.randint(9, 20))
            tokens = tuple(
                " ".join(str(chance.randrange(2, 131)) for _ in range(length)) for length in lengths
            )
            model = make_folder(folder / "models" / name, kind, seed=seed)
            yield {"model": str(model), "tokens": tokens, "new_tokens": 4}, name


def _replay(subject: Subject, device: Device, model: str, dtype: str) -> Tally:
    """Replay every test of a suite; repeat if the device is lost, which is printed."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _replay_operators(subject, device, model, dtype)
        except DeviceLostError as error:
            device.close()
            print(f"{model} {dtype} is replayed again: {error}", flush=True)
    return _replay_operators(subject, device, model, dtype)


def _replay_operators(subject: Subject, device: Device, model: str, dtype: str) -> Tally:
    tally = Tally(model, dtype, device.description.vendor_platform)
    for name, library in subject.libraries.items():
        operator = subject.operators[name]
        classes = tuple(traits.operator_class for traits in traits_of(operator))
        replay_operator(
            operator, subject.probing.tests(operator, subject.tests[name]), library,
            device.session, subject.probing, subject.policy, memory=device.memory,
            on_result=lambda result: tally.add(result, classes),  # noqa: B023 - used at once
        )  # fmt: skip
    return tally


def _print(tallies: list[Tally]) -> None:
    """Sums per dtype and driver, the largest ratio per class, and tests that did not pass."""
    print()
    sums: dict[tuple[str, str], Tally] = {}
    for tally in tallies:
        total = sums.setdefault(
            (tally.dtype, tally.driver), Tally("all", tally.dtype, tally.driver)
        )
        total.counts += tally.counts
        total.probes += tally.probes
        for name, relative in tally.largest.items():
            total.largest[name] = max(total.largest.get(name, 0.0), relative)
    print_table([total.row() for total in sums.values()])
    print()
    print_table(
        [
            {"driver": total.driver, "output and class": name, "largest / limit": round(worst, 3)}
            for total in sums.values()
            for name, worst in sorted(total.largest.items())
        ]
    )
    accused = [f"{t.model} {t.dtype} on {t.driver}: {line}" for t in tallies for line in t.accused]
    tests = sum(tally.tests for tally in tallies)
    largest = max((max(t.largest.values(), default=0.0) for t in tallies), default=math.nan)
    print(
        f"\n{tests} tests of right kernels: {len(accused)} do not pass; largest ratio "
        f"{largest:.3g} of its limit"
    )
    print("\n".join(accused))


if __name__ == "__main__":
    sys.exit(main())
