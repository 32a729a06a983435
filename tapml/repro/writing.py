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

from tapml.durable.files import replace_folder
from tapml.failures.error_map import describe_errors
from tapml.oracles.expectation_store import pack_check
from tapml.plan.graph_plan import GraphPlan, Operator
from tapml.replaying.failure import KERNELS, Failure
from tapml.suite.definitions import pack_plan
from tapml.verdicts.judge import choose_limits
from tapml_targets.description import to_plain
from tapml_targets.installed import result_versions
from tapml_targets.library import Library
from tapml_targets.library_format import pack
from tapml_targets.platforms import language_of_dialect

FORMAT_VERSION: Final = 3
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

SCRIPT_TEXT: Final = '''\
"""Replays what failed here; prints the verdict, and says where it is not the one of then.

    python repro.py [--device NAME]

It needs Python, the base install of tapml and a driver for the device: no model, no session, no
TVM, no PyTorch. Sources in kernels/ are run as they are now. Exit codes: 0 it passes now, 1 it
fails, 2 input or environment, 3 no such device, 4 the device was lost.
"""

import sys
from pathlib import Path

try:
    from tapml.repro.script import main
except ImportError as error:
    sys.exit(print(f"repro.py needs the base install of tapml: {error}", file=sys.stderr) or 2)

if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent, sys.argv[1:]))
'''
"""The file ``repro.py``, the same in every folder; what it does is `tapml.repro.script`."""


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
        "versions": result_versions(),
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
        language = language_of_dialect(module.dialect)
        if language is None:
            files.append(None)
            continue
        name = f"{index:02d}.{language.extension}"
        (folder / name).write_bytes(module.code)
        files.append(name)
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


def errors_page(failure: Failure) -> str:
    """Where in the tensors the errors are, and what localization found."""
    verdict = failure.result.verdict
    pages = [f"{verdict.status}: {verdict.reason}\n"]
    if failure.result.actual:
        for output, raw in zip(failure.expectation.outputs, failure.result.actual, strict=True):
            passing = 0.0
            if output.is_float:
                terms = failure.expectation.terms
                chosen = choose_limits(failure.policy, failure.operator.name, output, terms)
                passing = chosen.limits.passing
            with np.errstate(all="ignore"):
                pages.append(describe_errors(output, raw, passing))
    else:
        pages.append("the outputs themselves are right, or there are none\n")
    pages += _diagnosis(failure)
    return "\n".join(pages)


def _diagnosis(failure: Failure) -> list[str]:
    """What localization found, as one page; none where it was not asked or found nothing."""
    lines = failure.diagnosis.lines() if failure.diagnosis is not None else []
    return ["Diagnosis:\n" + "".join(f"  {line}\n" for line in lines)] if lines else []


def readme(name: str, failure: Failure, kernels: Sequence[str | None]) -> str:
    """What failed where, and the one command that replays it from the folder called `name`."""
    device = failure.device
    origins = "\n".join(
        f"  {origin.operation} at {origin.source} ({origin.module_path})"
        for origin in failure.origins
    )
    sources = ", ".join(f"{KERNELS}/{each}" for each in kernels if each) or "binary only"
    verdict = failure.result.verdict
    found = "passes" if verdict.status == "pass" else "is wrong"
    if verdict.cause.is_loss:
        found = "fails"
    return f"""\
Operator {failure.operator.name} {found} on {device.name}.

{verdict.status}: {verdict.reason}
{"".join(chr(10) + page for page in _diagnosis(failure))}
Replay it, here or on any machine with the same kind of device:

  python {name}/repro.py

It takes the base install of tapml and a driver for {device.platform}; neither the model nor a
compiler is needed. `tapml replay {name}` does the same and knows more options. Kernel sources:
{sources}; a replay runs them as they are in this folder, so edit one and replay to try a fix.

Device: {device.name}, {device.vendor_platform}, {device.driver_version}
Test: {failure.result.test}
{"From the model:" + chr(10) + origins + chr(10) if origins else ""}
errors.txt says where in the tensors the errors are. inputs/ is what the operator read, reference/
what the reference platform wrote, actual/ what the device wrote, expected/ the float64 result and
sensitivity/ how far that moves when the inputs move by one unit in their last place.
operator.tapml is the operator itself, for `tapml reduce` on a machine with the toolkit.
"""
