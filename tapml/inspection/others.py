"""Sessions, repro folders, bundles, exported folders and Libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tapml.bundle.bundle import read_bundle
from tapml.diff.outcome import SESSION_REPORT, OperatorOutcome, read_outcome
from tapml.export.cases import LIBRARIES, read_cases
from tapml.inspection.page import Cell, Page, Table
from tapml.repro.folder import Repro, read_repro
from tapml_targets.errors import InputError
from tapml_targets.library import Library, launches
from tapml_targets.library_format import MAGIC, library_hash, unpack

MAX_LIBRARY_BYTES: Final = 1 << 30


def describe_session(folder: Path) -> Page:
    """The state of a session according to its latest report."""
    if not (folder / SESSION_REPORT).is_file():
        facts: dict[str, Cell] = {
            "status": "no report yet: continue with `tapml offload --session`"
        }
        return Page("session", str(folder), facts)
    outcome = read_outcome(folder)
    rows = tuple(
        (name, each.status, each.count, each.ratio, _reason(each))
        for name, each in outcome.operators.items()
    )
    columns = ("operator", "status", "tests", "worst ratio", "reason")
    return Page(
        "session",
        str(folder),
        {"status": outcome.status, **outcome.facts},
        (Table("operators", columns, rows),),
    )


def _reason(outcome: OperatorOutcome) -> str:
    return "" if outcome.status == "pass" else outcome.reason.partition("\n")[0]


def describe_repro(folder: Path) -> Page:
    """The failure in a repro folder."""
    return _describe_failure("repro", folder, read_repro(folder))


def describe_bundle(path: Path) -> Page:
    """The failure in a bundle.

    Raises
    ------
    InputError
        If the file is not a bundle, or is damaged.
    """
    return _describe_failure("bundle", path, read_bundle(path))


def _describe_failure(kind: str, path: Path, repro: Repro) -> Page:
    facts: dict[str, Cell] = {
        "operator": repro.operator.name,
        "test": repro.case.id,
        "status": repro.status,
        "reason": repro.reason,
        "cause": repro.cause,
        "device": str(repro.device.get("name")),
        "driver": str(repro.device.get("driver_version")),
        "edited kernels": ", ".join(repro.edited) or "none",
    }
    arrays = (*repro.case.read_inputs(), *repro.case.read_outputs())
    parameters = (*repro.operator.read, *repro.operator.written)
    rows = tuple(
        (parameter.role, parameter.name, " × ".join(map(str, array.shape)), parameter.dtype)
        for parameter, array in zip(parameters, arrays, strict=True)
    )
    tables = (Table("tensors", ("role", "parameter", "shape", "dtype"), rows),)
    return Page(kind, str(path), facts, tables)


def describe_export(folder: Path) -> Page:
    """The files of exported tests."""
    cases = read_cases(folder)
    libraries = folder / LIBRARIES
    platforms = sorted(each.name for each in libraries.iterdir()) if libraries.is_dir() else []
    facts: dict[str, Cell] = {
        "model": cases.model,
        "tests": sum(len(file.tests) for file in cases.files.values()),
        "compiled for": ", ".join(platforms) or "nothing: TVM compiles where they run",
    }
    rows = tuple((name, file.operator, len(file.tests)) for name, file in cases.files.items())
    return Page(
        "export", str(folder), facts, (Table("files", ("file", "operator", "tests"), rows),)
    )


def is_library(path: Path) -> bool:
    """Whether a file may be a packed Library: it is small enough to be read."""
    return path.is_file() and path.stat().st_size <= MAX_LIBRARY_BYTES


def begins_as_library(path: Path) -> bool:
    """Whether a file begins with the magic number of packed Libraries."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def describe_library(path: Path) -> Page:
    """The operators, kernels and modules of a packed Library.

    Raises
    ------
    InputError
        If it is not a file, or is too large.
    ProtocolError
        If its content is not a Library.
    """
    if not is_library(path):
        raise InputError(
            f"{path} is not a Library: expected a file of at most {MAX_LIBRARY_BYTES} bytes"
        )
    data = path.read_bytes()
    library = unpack(data)
    facts: dict[str, Cell] = {
        "target": library.target,
        "hash": library_hash(data),
        "bytes": len(data),
        "operators": len(library.operators),
        "kernels": len(library.kernels),
        "entries": ", ".join(library.entries) or "none",
        **{str(name): value for name, value in library.metadata.items()},
    }
    return Page("library", str(path), facts, tuple(library_tables(library)))


def library_tables(library: Library) -> Iterator[Table]:
    """Tables of a Library's operators, kernels and modules."""
    rows = []
    for operator in library.operators.values():
        count = sum(1 for _ in launches(operator.statements))
        rows.append((operator.name, len(operator.parameters), count, len(operator.workspaces)))
    yield Table("operators", ("operator", "parameters", "launches", "workspaces"), tuple(rows))
    kernels = tuple(
        (
            kernel.name,
            library.modules[kernel.module].dialect,
            kernel.threads_per_block or None,
            kernel.shared_memory_bytes,
            " ".join(kernel.features),
        )
        for kernel in library.kernels.values()
    )
    yield Table("kernels", ("kernel", "dialect", "threads", "shared bytes", "features"), kernels)
    modules = tuple(
        (index, module.dialect, len(module.code), " ".join(module.options))
        for index, module in enumerate(library.modules)
    )
    yield Table("modules", ("module", "dialect", "bytes", "options"), modules)
