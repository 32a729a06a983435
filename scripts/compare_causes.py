"""Plants the 12 causes of CRADLE in a backend, on every model where they can act.

    python3 scripts/compare_causes.py FOLDER                      FOLDER is that of
                                                                  compare_model_set.py
    python3 scripts/compare_causes.py FOLDER --only 'lenet*'      some of the models, --minutes 5
    python3 scripts/compare_causes.py FOLDER --further            other faults, in ONNX graphs and
                                                                  torch modules, which it makes
    python3 scripts/compare_causes.py FOLDER --int8               faults of 8 bits, in ONNX graphs
                                                                  which it makes
    python3 scripts/compare_causes.py FOLDER --table              the table of what is there, into
                                                                  docs/compare.md; with --further
                                                                  or --int8 that of these faults

Two healthy backends and a faulty one run each model: are the faulty pairs detected, by which tier,
and is the first node the culprit? The patches themselves write down where they changed a value.
What was studied is kept in FOLDER/causes, FOLDER/further or FOLDER/int8;
`tapml compare --calibrate FOLDER/causes` reads it. A
model's causes are kept one by one, so that a run that was interrupted goes on where it was. Exit
code 1: a fault was missed, or laid at another node.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from scripts.cradle_causes import on_numpy, on_onnx, on_program, on_torch
from scripts.cradle_causes.causes import CAUSES, Cause
from scripts.cradle_causes.further import FURTHER, INT8
from scripts.cradle_causes.patches import ACTED
from scripts.cradle_causes.table import misses, write_further, write_int8, write_table
from scripts.model_set.int8_onnx import FORMS, make_int8
from tapml.backends.child import JOBS
from tapml.backends.finding import Backend, find_backend
from tapml.backends.runner import Array
from tapml.comparing.data import Data, read_data
from tapml.comparing.localizing import Localizer
from tapml.comparing.processes import (
    BackendFailedError,
    BackendProcess,
    Failure,
)
from tapml.comparing.result import BackendResult, Comparison
from tapml.comparing.run import DEADLINE_SECONDS, environment_of
from tapml.comparing.verdicts import Thresholds, judge, truth_of
from tapml.durable.files import write_json
from tapml.durable.strict_json import to_strict
from tapml.isolate.pool import Pool
from tapml_targets.platforms import DEFAULT_PLATFORM

# Keras on PyTorch averages wrongly today, so it is not one of them. The first two that convert the
# model are held against the fault.
HEALTHY: Final = {
    ".keras": ("keras-openvino", "keras-tensorflow"),
    ".onnx": ("onnxruntime", "openvino", "onnxruntime:disabled"),
    ".module": ("torch-compile:aot-eager", "onnxruntime", "openvino", "tvm"),
}
_HELD: Final = 2
# Of models of 8 bits all that convert it, a device among them.
HEALTHY_OF_INT8: Final = ("onnxruntime", "openvino", "tvm", DEFAULT_PLATFORM)
# What the faults are planted in.
_PATCHED: Final = {
    ".keras": lambda: find_backend("keras-numpy"),
    ".onnx": lambda: Backend("the reference", on_onnx.__name__, on_onnx.DESCRIPTION),
    ".module": lambda: Backend("the program", on_program.__name__, on_program.DESCRIPTION),
}
_PACKAGES: Final = {".keras": on_numpy, ".onnx": on_onnx, ".module": on_program}


class LeftOutError(Exception):
    """The model shows nothing, as backends part on it without a fault."""


def main(arguments: list[str] | None = None) -> int:
    """Study what is not studied yet."""
    parser = argparse.ArgumentParser(description="Plant the causes that CRADLE found.")
    parser.add_argument("folder", type=Path, help="models and data")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="models to match")
    parser.add_argument(
        "--minutes", type=float, default=1e6, metavar="M", help="begin no cause after that"
    )
    parser.add_argument(
        "--further", dest="set", action="store_const", const="further", default="causes",
        help="faults beside CRADLE's, see scripts/cradle_causes",
    )  # fmt: skip
    parser.add_argument(
        "--int8", dest="set", action="store_const", const="int8", help="faults of models of 8 bits"
    )
    parser.add_argument("--table", action="store_true", help="only write docs/compare.md")
    options = parser.parse_args(arguments)
    os.nice(max(0, 10 - os.nice(0)))
    results = options.folder / options.set
    results.mkdir(parents=True, exist_ok=True)
    if not options.table:
        until = time.monotonic() + 60 * options.minutes
        _study_all(options.folder, results, options.only, until, SETS[options.set])
    studied = [json.loads(each.read_text("utf-8")) for each in sorted(results.glob("*.json"))]
    if options.table:
        SETS[options.set].write(ROOT / "docs" / "compare.md", studied)
    for line in misses(studied):
        print(f"missed: {line}")
    return 1 if misses(studied) else 0


def _make_torch_modules(folder: Path) -> None:
    from scripts.model_set.torch_modules import make_torch_modules

    make_torch_modules(folder)


@dataclass(frozen=True)
class CauseSet:
    """Causes, the models they are planted in, what makes these, and what writes their table."""

    causes: tuple[Cause, ...]
    suffixes: tuple[str, ...]
    write: Callable[[Path, Sequence[dict[str, Any]]], None]
    make: Callable[[Path], None] = lambda _: None

    def has(self, model: Path) -> bool:
        """Whether the causes are planted in a model."""
        of_int8 = (model.stem in FORMS) == (self.causes is INT8)
        return of_int8 and model.suffix in self.suffixes and "." not in model.stem


SETS: Final = {
    "causes": CauseSet(CAUSES, (".onnx", ".keras"), write_table),
    "further": CauseSet(FURTHER, (".onnx", ".module"), write_further, _make_torch_modules),
    "int8": CauseSet(INT8, (".onnx",), write_int8, make_int8),
}


def _study_all(folder: Path, results: Path, only: str, until: float, chosen: CauseSet) -> None:
    """Study the models that match and are not studied yet, the smallest first."""
    chosen.make(folder)
    with Pool(JOBS) as pool:
        models = filter(chosen.has, folder.iterdir())
        for model in sorted(models, key=lambda each: each.stat().st_size):
            file = results / f"{model.stem}.json"
            if file.exists() or not fnmatchcase(model.stem, only):
                continue
            parts = results / "parts" / model.stem
            try:
                found = study(
                    model, read_data(model.with_suffix(".npz")), pool, parts,
                    chosen.causes, until=until,
                )  # fmt: skip
            except LeftOutError as error:
                print(f"{model.stem}: left out, as {error}", flush=True)
                continue
            if found is None:
                return
            write_json(file, found)
            shutil.rmtree(parts, ignore_errors=True)
            planted = [each for each in found["pairs"] if each["cause"]]
            print(f"{model.stem}: {len(planted)} faulty pairs, {len(misses([found]))} missed",
                  flush=True)  # fmt: skip


def study(
    model: Path, data: Data, pool: Pool, parts: Path, causes: tuple[Cause, ...] = CAUSES,
    until: float = inf,
) -> dict[str, Any] | None:  # fmt: skip
    """One model with every cause that can act on it.

    Parameters
    ----------
    parts
        A folder that keeps each cause's pairs, and has those of an earlier run.
    until
        Begin no cause after that time of `time.monotonic`.

    Returns
    -------
    A comparison as plain data; its pairs have besides ``cause`` (empty for the healthy pair),
    ``truth``, ``acted``, the nodes where the patch changed a value, in order, and ``ended``, the
    last of them in a run that failed. None if the time was over before the last cause.

    Raises
    ------
    LeftOutError
        If backends part without a fault, or do not run the model.
    """
    parts.mkdir(parents=True, exist_ok=True)
    processes: dict[str, BackendProcess] = {}
    outputs: dict[str, dict[str, Array]] = {}
    failures: dict[str, Failure] = {}
    started = time.monotonic()
    try:
        whole = parts / "healthy.json"
        if whole.exists() and "left out" in (kept := json.loads(whole.read_text("utf-8"))):
            raise LeftOutError(kept["left out"])
        try:
            inputs = _run_healthy(model, data, pool, processes, outputs, known=whole.exists())
        except LeftOutError as error:
            write_json(whole, {"left out": str(error)})
            raise
        localizer = Localizer(processes, inputs, data, failures)
        if not whole.exists():
            pairs = [_pair(each, outputs, data, localizer) for each in combinations(processes, 2)]
            backends = tuple(
                BackendResult(name, each.backend.description.title, each.versions, each.seconds)
                for name, each in processes.items()
            )
            document = Comparison(model.stem, len(data), "labels", backends, ()).to_json()
            document["pairs"] = [
                each | {"cause": "", "truth": False, "acted": []} for each in pairs
            ]
            write_json(whole, to_strict(document))
        kinds = {each.kind for each in next(iter(processes.values())).nodes}
        acting = [each for each in causes
                  if not kinds.isdisjoint(each.acts_on(model.suffix))]  # fmt: skip
        for cause in acting:
            file = parts / f"{cause.name}.json"
            if file.exists():
                continue
            if time.monotonic() > until:
                return None
            part = _planted(cause, model, pool, parts, _Healthy(processes, outputs, inputs, data),
                            localizer, failures)  # fmt: skip
            write_json(file, to_strict(part))
            print(f"  {model.stem}, {cause.name}: {len(part['pairs'])} pairs, "
                  f"{time.monotonic() - started:.0f} s", flush=True)  # fmt: skip
    finally:
        for process in processes.values():
            process.close()
    found: dict[str, Any] = json.loads(whole.read_text("utf-8"))
    for cause in acting:
        part = json.loads((parts / f"{cause.name}.json").read_text("utf-8"))
        found["pairs"] += part["pairs"]
        found["backends"] += part["backends"]
    return found


@dataclass(frozen=True)
class _Healthy:
    """The backends that run the model without a fault, and what they make of the data."""

    processes: dict[str, BackendProcess]
    outputs: dict[str, dict[str, Array]]
    inputs: dict[str, Array]
    data: Data


def _planted(
    cause: Cause, model: Path, pool: Pool, scratch: Path, healthy: _Healthy, localizer: Localizer,
    failures: dict[str, Failure],
) -> dict[str, Any]:  # fmt: skip
    """The pairs of one cause, and the backends of it that failed."""
    processes, outputs = healthy.processes, healthy.outputs
    beside = tuple(processes)
    acted = scratch / "acted.txt"
    acted.unlink(missing_ok=True)
    everywhere = cause.everywhere and model.suffix == ".keras"
    packages = [on_numpy, on_torch] if everywhere else [_PACKAGES[model.suffix]]
    faulty = [_faulty(each, cause, acted, model, pool) for each in packages]
    names = [each.backend.text for each in faulty]
    try:
        for name, process in zip(names, faulty, strict=True):
            processes[name] = process
            try:
                outputs[name] = process.run(healthy.inputs)
            except BackendFailedError as error:
                failures[name] = error.failure
        # Before nodes are run alone, which acts as well.
        ended = [] if failures.keys().isdisjoint(names) else _nodes_in(acted)[-1:]
        against = [(names[0], names[1])] if everywhere else [(each, names[0]) for each in beside]
        found = [_pair(each, outputs, healthy.data, localizer) for each in against]
        nodes = set(_nodes_in(acted))
        order = [each.name for each in processes[beside[0]].nodes if each.name in nodes]
    finally:
        for name, process in zip(names, faulty, strict=True):
            process.close()
            processes.pop(name, None)
            outputs.pop(name, None)
            localizer.forget(name)
        acted.unlink(missing_ok=True)
    planted = {"cause": cause.name, "truth": True, "acted": order, "ended": ended,
               "fused": cause.fused}  # fmt: skip
    return {
        "pairs": [each | planted for each in found if order],
        "backends": [
            {"name": name, "failure": asdict(failures.pop(name))} for name in names
            if name in failures
        ],
    }  # fmt: skip


def _nodes_in(acted: Path) -> list[str]:
    return acted.read_text("utf-8").splitlines() if acted.exists() else []


def _run_healthy(
    model: Path, data: Data, pool: Pool, processes: dict[str, BackendProcess],
    outputs: dict[str, dict[str, Array]], *, known: bool,
) -> dict[str, Array]:  # fmt: skip
    """Fill in the first backends that convert the model, and what they make; the inputs.

    What is patched must agree with them while nothing is planted in it, unless that is known.
    """
    inputs: dict[str, Array] = {}
    of_int8 = model.stem in FORMS
    for name in HEALTHY_OF_INT8 if of_int8 else HEALTHY[model.suffix]:
        processes[name] = process = _process(find_backend(name), model, pool)
        try:
            process.load()
            inputs = data.for_inputs(process.inputs)
            outputs[name] = process.run(inputs)
        except BackendFailedError as error:
            if error.failure.kind != "unsupported":
                raise LeftOutError(f"{name} fails: {error}") from error
            processes.pop(name).close()
        if len(outputs) == _HELD and not of_int8:
            break
    if len(outputs) < _HELD:
        raise LeftOutError(f"only {' and '.join(outputs) or 'nothing'} runs it")
    if known:
        return inputs
    made = dict(outputs)
    with _process(_PATCHED[model.suffix](), model, pool) as process:
        name = process.backend.text
        try:
            made[name] = process.run(inputs)
        except BackendFailedError as error:
            raise LeftOutError(f"{name} fails without a fault: {error}") from error
        localizer = Localizer({**processes, name: process}, inputs, data, {})
        for one, other in combinations(made, 2):
            found = _pair((one, other), made, data, localizer)
            if found["status"] != "agree":
                raise LeftOutError(f"{one} and {other} part without a fault: {found['reason']}")
    return inputs


def _pair(
    names: tuple[str, str], outputs: Mapping[str, dict[str, Array]], data: Data,
    localizer: Localizer,
) -> dict[str, Any]:  # fmt: skip
    if not all(name in outputs for name in names):
        found = localizer.failed(names)
    else:
        truth = truth_of(data.labels, [outputs[names[0]]])
        verdict = judge(outputs[names[0]], outputs[names[1]], truth, Thresholds(),
                        instances=len(data))  # fmt: skip
        found = localizer.examined(names, verdict, outputs)
        # Also where no tier triggers: the patch writes down where it acts.
        if found.status == "agree" and names[1].startswith("on_"):
            found = replace(found, graph=localizer.inconsistent(found, outputs).graph)
    document = Comparison("", 0, "", (), (found,)).to_json()
    plain: dict[str, Any] = document["pairs"][0]
    return plain


def _faulty(package: Any, cause: Cause, acted: Path, model: Path, pool: Pool) -> BackendProcess:
    name = f"{package.__name__.rpartition('.')[2]}:{cause.name}"
    process = _process(
        Backend(name, package.__name__, package.DESCRIPTION, cause.name), model, pool
    )
    process.environment = replace(
        process.environment, variables={**process.environment.variables, ACTED: str(acted)}
    )
    return process


def _process(backend: Backend, model: Path, pool: Pool) -> BackendProcess:
    return BackendProcess(
        backend, model.resolve(), pool, environment_of(backend, preload=True), DEADLINE_SECONDS
    )


if __name__ == "__main__":
    sys.exit(main())
