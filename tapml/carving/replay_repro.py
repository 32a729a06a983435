"""Repro folders: one failing test that anyone replays with the base install and a driver.

    repro.json       operator, test, policy, device, versions, verdict
    library.tapml    the Library as it was uploaded
    kernels/         its sources; what is edited here is what a replay runs
    inputs/ reference/ actual/ expected/ sensitivity/    tensors as .npy, bfloat16 as uint16
    operator.tapml   the operator's function and body, in the form suites have them
    diagnosis.json   what localization found, where it was asked
    independent.tapml    what torch gives in float64, where that was compared
    errors.txt       where the errors are
    repro.py         replays it: one command, and the same verdict
    README.txt       what it is

Expected values and sensitivities lie in the folder, so that neither TVM nor the model is needed to
replay it. A host takes the operator from it to reduce the failure, compile it again or diagnose it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.carving.definitions import pack_plan
from tapml.carving.repro_failure import KERNELS, Failure
from tapml.carving.repro_pages import SCRIPT_TEXT, errors_page, readme
from tapml.compare.independent_format import pack_check
from tapml.durable.files import replace_folder
from tapml.graph.plan import GraphPlan, Operator
from tapml_targets.description_format import to_plain
from tapml_targets.installed import package_version
from tapml_targets.library import Library
from tapml_targets.library_format import pack

FORMAT_VERSION: Final = 2
DESCRIPTION: Final = "repro.json"
LIBRARY: Final = "library.tapml"
OPERATOR: Final = "operator.tapml"
DIAGNOSIS: Final = "diagnosis.json"
INDEPENDENT: Final = "independent.tapml"
ERRORS: Final = "errors.txt"
README: Final = "README.txt"
SCRIPT: Final = "repro.py"
TENSORS: Final = ("inputs", "reference", "actual", "expected", "sensitivity")
"""Folders of tensors; one file per parameter read (``inputs``) or written (the others)."""
EXTENSIONS: Final = {"opencl-c": "cl", "wgsl": "wgsl", "cuda-c": "cu", "metal": "metal"}
__all__ = ["Failure", "versions", "write_repro"]

_PACKAGES: Final = (
    "tapml", "numpy", "apache-tvm", "apache-tvm-ffi", "torch", "pyopencl", "pyzmq",
)  # fmt: skip


def write_repro(
    folder: Path, failure: Failure, *, documents: Mapping[str, str] | None = None
) -> Path:
    """Write a repro folder, whole or not at all; one of the same name is replaced.

    Parameters
    ----------
    folder
        Where.
    failure
        What goes in.
    documents
        Further text files by name, e.g. ``reduced.json``.

    Returns
    -------
    Path
        `folder`.

    Raises
    ------
    SetupError
        If it cannot be written.
    """
    with replace_folder(folder) as partial:
        _write_contents(partial, folder, failure)
        for name, text in (documents or {}).items():
            (partial / name).write_text(text)
    return folder


def _write_contents(folder: Path, final: Path, failure: Failure) -> None:
    operator, result = failure.operator, failure.result
    case = result.case
    inputs, reference = case.read_inputs(), case.read_outputs()
    expected = [output.values for output in failure.expectation.outputs]
    sensitivity = [output.sensitivity for output in failure.expectation.outputs]
    read = [parameter.name for parameter in operator.read]
    written = [parameter.name for parameter in operator.written]
    contents = {
        "inputs": (read, inputs),
        "reference": (written, reference),
        "actual": (written[: len(result.actual)], result.actual),
        "expected": (written, expected),
        "sensitivity": (written, sensitivity),
    }
    files = {name: _write_tensors(folder / name, *contents[name]) for name in TENSORS}
    (folder / LIBRARY).write_bytes(pack(failure.library))
    (folder / OPERATOR).write_bytes(_packed(operator))
    kernels = write_kernels(folder / KERNELS, failure.library)
    description = {
        "format": FORMAT_VERSION,
        "operator": _operator(operator, inputs, reference),
        "origins": [asdict(origin) for origin in failure.origins],
        "test": {
            "id": case.id,
            "key": case.key,
            "symbols": dict(case.symbols),
            "lifetimes": [tensor.lifetime for tensor in case.inputs],
        },
        "terms": failure.expectation.terms,
        "repeats": failure.expectation.repeats,
        "reference_ratios": [str(output.reference_ratio) for output in failure.expectation.outputs],
        "classes": [[o.operator_class, o.arithmetic] for o in failure.expectation.outputs],
        "index_sources": [output.source_place for output in failure.expectation.outputs],
        "files": files,
        "kernels": kernels,
        "policy": failure.policy.to_json(),
        "device": to_plain(failure.device),
        "versions": versions(),
        "verdict": result.verdict.to_json(),
    }
    _write_json(folder / DESCRIPTION, description)
    if failure.expectation.independent is not None:
        (folder / INDEPENDENT).write_bytes(pack_check(failure.expectation.independent))
    if failure.diagnosis is not None:
        _write_json(folder / DIAGNOSIS, failure.diagnosis.to_json())
    (folder / ERRORS).write_text(errors_page(failure))
    (folder / README).write_text(readme(final.name, failure, kernels))
    (folder / SCRIPT).write_text(SCRIPT_TEXT)


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")


def _packed(operator: Operator) -> bytes:
    alone = GraphPlan(operator.name, {operator.name: operator}, entries={}, weights={}, state={})
    return pack_plan(alone).operators


def _write_tensors(folder: Path, names: Sequence[str], arrays: Sequence[NDArray[Any]]) -> list[str]:
    folder.mkdir()
    files = []
    for index, (name, array) in enumerate(zip(names, arrays, strict=True)):
        plain = "".join(c if c.isalnum() or c in "_-" else "_" for c in name)[:60]
        files.append(f"{index:02d}_{plain}.npy")
        np.save(folder / files[-1], np.asarray(array), allow_pickle=False)
    return files


def write_kernels(folder: Path, library: Library) -> list[str | None]:
    """Sources of the Library's modules, None for binary ones."""
    folder.mkdir()
    files: list[str | None] = []
    for index, module in enumerate(library.modules):
        extension = EXTENSIONS.get(module.dialect)
        if extension is None:
            files.append(None)
            continue
        files.append(f"{index:02d}.{extension}")
        (folder / f"{index:02d}.{extension}").write_bytes(module.code)
    return files


def _operator(
    operator: Operator, inputs: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]
) -> dict[str, Any]:
    """The operator with the shapes it had in this test."""
    read, written = iter(inputs), iter(outputs)
    parameters = []
    for parameter in operator.parameters:
        if parameter.role == "inout":
            next(read)
        array = next(read if parameter.role == "input" else written)
        parameters.append(
            {
                "name": parameter.name,
                "shape": list(array.shape),
                "dtype": parameter.dtype,
                "role": parameter.role,
            }
        )
    return {
        "name": operator.name,
        "hash": operator.hash,
        "parameters": parameters,
        "symbols": list(operator.symbols),
        "output_kinds": list(operator.output_kinds),
        "script": operator.script,
    }


def versions() -> dict[str, str]:
    """Versions of what had a part in the result, of those installed here."""
    found = {package: package_version(package) for package in _PACKAGES}
    return {package: number for package, number in found.items() if number is not None}
