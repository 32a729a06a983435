"""Repro folders: one failing test that anyone replays with the base install and a driver.

    repro.json       operator, test, policy, device, versions, verdict
    library.tapml    the Library as it was uploaded
    kernels/         its sources; what is edited here is what a replay runs
    inputs/ reference/ actual/ expected/ sensitivity/    tensors as .npy, bfloat16 as uint16
    errors.txt       where the errors are
    README.txt       the one command

Expected values and sensitivities lie in the folder, so that neither TVM nor the model is needed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.carving.error_map import describe_errors
from tapml.carving.replay_results import ReplayResult
from tapml.compare.expectation import Expectation
from tapml.compare.policy import Policy
from tapml.graph.plan import Operator, Origin
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import SetupError
from tapml_targets.installed import package_version
from tapml_targets.library import Library
from tapml_targets.library_format import pack

FORMAT_VERSION: Final = 1
DESCRIPTION: Final = "repro.json"
LIBRARY: Final = "library.tapml"
EXTENSIONS: Final = {"opencl-c": "cl", "wgsl": "wgsl", "cuda-c": "cu", "metal": "metal"}
_PACKAGES: Final = (
    "tapml", "numpy", "apache-tvm", "apache-tvm-ffi", "torch", "pyopencl", "pyzmq",
)  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """What a repro folder is made from."""

    operator: Operator
    result: ReplayResult
    library: Library
    device: DeviceDescription
    expectation: Expectation
    policy: Policy
    origins: tuple[Origin, ...] = ()


def write_repro(folder: Path, failure: Failure) -> Path:
    """Write a repro folder, whole or not at all; one of the same name is replaced.

    Returns
    -------
    Path
        `folder`.

    Raises
    ------
    SetupError
        If it cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _write_contents(partial, folder, failure)
        if folder.exists():
            old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
            folder.rename(old)
            partial.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        else:
            partial.rename(folder)
    except OSError as error:
        raise SetupError(
            f"the repro folder {folder} cannot be written ({error}): free some space or choose "
            "another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _write_contents(folder: Path, final: Path, failure: Failure) -> None:
    operator, result = failure.operator, failure.result
    case = result.case
    inputs, reference = case.read_inputs(), case.read_outputs()
    expected = [output.values for output in failure.expectation.outputs]
    sensitivity = [output.sensitivity for output in failure.expectation.outputs]
    read = [parameter.name for parameter in operator.read]
    written = [parameter.name for parameter in operator.written]
    files = {
        "inputs": _write_tensors(folder / "inputs", read, inputs),
        "reference": _write_tensors(folder / "reference", written, reference),
        "actual": _write_tensors(folder / "actual", written[: len(result.actual)], result.actual),
        "expected": _write_tensors(folder / "expected", written, expected),
        "sensitivity": _write_tensors(folder / "sensitivity", written, sensitivity),
    }
    (folder / LIBRARY).write_bytes(pack(failure.library))
    kernels = _write_kernels(folder / "kernels", failure.library)
    description = {
        "format": FORMAT_VERSION,
        "operator": _operator(operator, inputs, reference),
        "origins": [asdict(origin) for origin in failure.origins],
        "test": {"id": case.id, "key": case.key, "symbols": dict(case.symbols)},
        "terms": failure.expectation.terms,
        "repeats": failure.expectation.repeats,
        "reference_ratios": [str(output.reference_ratio) for output in failure.expectation.outputs],
        "index_sources": [output.source_place for output in failure.expectation.outputs],
        "files": files,
        "kernels": kernels,
        "policy": failure.policy.to_json(),
        "device": _device(failure.device),
        "versions": versions(),
        "verdict": result.verdict.to_json(),
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1, allow_nan=False) + "\n")
    (folder / "errors.txt").write_text(_errors(failure))
    (folder / "README.txt").write_text(_readme(final, failure, kernels))


def _write_tensors(folder: Path, names: Sequence[str], arrays: Sequence[NDArray[Any]]) -> list[str]:
    folder.mkdir()
    files = []
    for index, (name, array) in enumerate(zip(names, arrays, strict=True)):
        plain = "".join(c if c.isalnum() or c in "_-" else "_" for c in name)[:60]
        files.append(f"{index:02d}_{plain}.npy")
        np.save(folder / files[-1], np.asarray(array), allow_pickle=False)
    return files


def _write_kernels(folder: Path, library: Library) -> list[str | None]:
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


def _device(device: DeviceDescription) -> dict[str, Any]:
    plain = asdict(device)
    plain["limits"]["features"] = sorted(device.limits.features)
    return plain


def versions() -> dict[str, str]:
    """Versions of what had a part in the result, of those installed here."""
    found = {package: package_version(package) for package in _PACKAGES}
    return {package: number for package, number in found.items() if number is not None}


def _errors(failure: Failure) -> str:
    verdict = failure.result.verdict
    pages = [f"{verdict.status}: {verdict.reason}\n"]
    if failure.result.actual:
        for output, raw in zip(failure.expectation.outputs, failure.result.actual, strict=True):
            passing = 0.0
            if output.is_float:
                passing = failure.policy.limits_for(
                    failure.operator.name, output.dtype, failure.expectation.terms
                ).passing
            with np.errstate(all="ignore"):
                pages.append(describe_errors(output, raw, passing))
    else:
        pages.append("the outputs themselves are right, or there are none\n")
    return "\n".join(pages)


def _readme(folder: Path, failure: Failure, kernels: Sequence[str | None]) -> str:
    device = failure.device
    origins = "\n".join(
        f"  {origin.operation} at {origin.source} ({origin.module_path})"
        for origin in failure.origins
    )
    sources = ", ".join(f"kernels/{name}" for name in kernels if name) or "binary only"
    return f"""\
Operator {failure.operator.name} is wrong on {device.name}.

{failure.result.verdict.status}: {failure.result.verdict.reason}

Replay it, here or on any machine with the same kind of device:

  tapml replay {folder.name}

run in the folder that holds this one. It takes the base install of tapml and a driver for
{device.platform}; neither the model nor a compiler is needed. Kernel sources: {sources}; a replay
runs them as they are in this folder, so edit one and replay to try a fix.

Device: {device.name}, {device.vendor_platform}, {device.driver_version}
Test: {failure.result.test}
{"From the model:" + chr(10) + origins if origins else ""}
errors.txt says where in the tensors the errors are. inputs/ is what the operator read, reference/
what the reference platform wrote, actual/ what the device wrote, expected/ the float64 result and
sensitivity/ how far that moves when the inputs move by one unit in their last place.
"""
