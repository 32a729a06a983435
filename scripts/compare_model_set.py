"""Compares backends on a set of models, and writes tables II and III of CRADLE beside ours.

    python3 scripts/compare_model_set.py FOLDER                   what needs no package
    python3 scripts/compare_model_set.py FOLDER --packages DIR    ONNX files of packages too, see
                                                                  scripts/model_set/packaged.py
    python3 scripts/compare_model_set.py FOLDER --only 'lenet*'   some of the models, --minutes 5
    python3 scripts/compare_model_set.py FOLDER --tables          the tables of what is there, into
                                                                  docs/compare.md

Models are made once and compared once: a run that was interrupted goes on where it was, and a
model, its data or a library that changed is compared again. Everything runs niced. Exit code 1: a
pair is accused that no script in docs/bugs confirms.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from scripts.model_set.applications import APPLICATIONS
from scripts.model_set.case import Case
from scripts.model_set.packaged import PACKAGED, make_packaged
from scripts.model_set.rare import RARE
from scripts.model_set.seeded_onnx import SEEDED_ONNX, make_seeded
from scripts.model_set.tables import false_accusations, write_tables
from scripts.model_set.trained import TRAINED
from scripts.processes import children_processor_seconds
from tapml.backends.child import JOBS
from tapml.comparing.run import compare
from tapml.durable.files import write_json
from tapml.durable.strict_json import to_strict
from tapml.isolate.pool import Pool

CASES: Final = (
    *(Case(name, trained.dataset, ".keras") for name, trained in TRAINED.items()),
    *(Case(name, "digits, keras.applications", ".keras") for name in APPLICATIONS),
    *(Case(name, "digits, seeded ONNX", ".onnx") for name in SEEDED_ONNX),
    *(Case(name, "digits, rare settings", ".keras") for name in RARE),
    *(Case(name, f"{packaged.group} ({packaged.package})", ".onnx")
      for name, packaged in PACKAGED.items()),
)  # fmt: skip
_LIBRARIES: Final = (
    "keras", "torch", "jax", "tensorflow-cpu", "openvino", "onnxruntime", "onnx", "apache-tvm",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Make, compare, and print or write the tables."""
    parser = argparse.ArgumentParser(description="Compare backends on a set of models.")
    parser.add_argument("folder", type=Path, help="models, data and results")
    parser.add_argument("--packages", type=Path, metavar="DIR", help="where packages lie")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="names to match, in this order"
    )
    parser.add_argument(
        "--minutes", type=float, default=1e6, metavar="M", help="begin no model after that"
    )
    parser.add_argument("--tables", action="store_true", help="only write docs/compare.md")
    options = parser.parse_args(arguments)
    os.nice(max(0, 10 - os.nice(0)))
    if not options.tables:
        options.folder.mkdir(parents=True, exist_ok=True)
        cases = [case for each in options.only for case in CASES if fnmatchcase(case.name, each)
                 and (options.packages is not None or case.name not in PACKAGED)]  # fmt: skip
        compare_all(
            options.folder, list(dict.fromkeys(cases)), options.packages,
            time.monotonic() + 60 * options.minutes,
        )  # fmt: skip
    results = read_results(options.folder)
    if options.tables:
        write_tables(ROOT / "docs" / "compare.md", results)
    found = false_accusations(results)
    for line in found:
        print(f"unconfirmed: {line}")
    return 1 if found else 0


def make(folder: Path, cases: Sequence[Case], packages: Path | None) -> None:
    """Make the models that are not there; those of a kind together."""
    absent = [each for each in cases if not each.model(folder).exists()]
    for kind in (TRAINED, APPLICATIONS, RARE):
        names = [each.name for each in absent if each.name in kind]
        if names:
            path = os.pathsep.join(map(str, filter(None, (packages, os.environ.get("PYTHONPATH")))))
            subprocess.run(
                [sys.executable, ROOT / "scripts/model_set/making.py", folder, *names],
                check=True, env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
            )  # fmt: skip
    for each in absent:
        if each.name in SEEDED_ONNX:
            make_seeded(each.name, each.model(folder), each.data(folder))
    if packages is not None:
        sys.path.append(str(packages))
        for each in absent:
            if each.name in PACKAGED:
                make_packaged(each.name, packages, each.model(folder), each.data(folder))


def compare_all(folder: Path, cases: Sequence[Case], packages: Path | None, until: float) -> None:
    """Compare what has no result yet."""
    # In few processes, each of which imports Keras; a large graph is made when its turn comes.
    make(folder, [each for each in cases if each.name in TRAINED or each.name in RARE], packages)
    with Pool(JOBS) as pool:
        for number, case in enumerate(cases, 1):
            if time.monotonic() > until:
                return
            make(folder, [case], packages)
            key, file = _key(case, folder), _file(folder, case.name)
            if file.exists() and json.loads(file.read_text("utf-8"))["key"] == key:
                continue
            before = children_processor_seconds()
            comparison = compare(case.model(folder), case.backends, case.data(folder), pool=pool)
            result = {"key": key, "name": case.name, "group": case.group,
                      "processor_seconds": round(children_processor_seconds() - before, 1),
                      **comparison.to_json()}  # fmt: skip
            file.parent.mkdir(exist_ok=True)
            write_json(file, to_strict(result))
            differing = [each for each in result["pairs"] if each["status"] != "agree"]
            print(f"{number}/{len(cases)} {case.name}: {len(result['pairs'])} pairs, "
                  f"{len(differing)} do not agree, {result['processor_seconds']} processor s",
                  flush=True)  # fmt: skip


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Of every case that was compared, in the order of the set."""
    files = [_file(folder, each.name) for each in CASES]
    return [json.loads(each.read_text("utf-8")) for each in files if each.exists()]


def _file(folder: Path, name: str) -> Path:
    return folder / "results" / f"{name}.json"


def _key(case: Case, folder: Path) -> str:
    state = hashlib.sha256()
    for path in (case.model(folder), case.data(folder)):
        state.update(path.read_bytes())
    libraries = [f"{name} {version(name)}" for name in _LIBRARIES]
    state.update(json.dumps([case.backends, libraries]).encode())
    return state.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
