"""Description of a package: its model, device, sizes and origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from tapml.inspection.others import library_tables
from tapml.inspection.page import Cell, Page, Table
from tapml.package.files import PackageFiles, unpack_programs
from tapml.package.manifest import MANIFEST, VERSION, WEIGHTS

if TYPE_CHECKING:
    from tapml.package.manifest import Manifest
    from tapml.plan.graph_plan import GraphPlan
    from tapml_targets.library import Library


def describe_package(path: Path, *, verify: bool = False) -> Page:
    """A package's manifest, entries, operators, kernels and files.

    The hashes of all files are checked, except of the weights' data; with `verify`, also of those.

    Raises
    ------
    InputError
        If it is not a package, is damaged or was edited, or has a newer format.
    """
    files = PackageFiles(path)
    contents, weights = files.read_all(), files.weights()
    if verify:
        files.check_weights()
    plan, library = unpack_programs(path, contents)
    manifest, tensors = files.manifest, weights.tensors.values()
    facts: dict[str, Cell] = {
        **_model_facts(manifest),
        "bytes": sum(files.place(name).nbytes for name in (*manifest.files, MANIFEST)),
        "weights": len(tensors),
        "of them bytes": manifest.files[WEIGHTS].bytes,
        "parameters": sum(prod(each.shape) for each in tensors),
        "operators": len(library.operators),
        "kernels": len(library.kernels),
        "checked": "the hash of every file"
        if verify
        else f"the hash of every file but the data of {WEIGHTS} (--verify checks that as well)",
    }
    return Page("package", str(path), facts, tuple(_tables(manifest, plan, library)))


def _model_facts(manifest: Manifest) -> dict[str, Cell]:
    model, device, verdict = manifest.model, manifest.device, manifest.verdict
    ratio = verdict.get("worst_ratio")
    return {
        "model": model.name,
        "dtype": model.dtype,
        **model.facts(),
        "weights hash": model.weights_hash,
        "platform": device.platform,
        "validated on": f"{device.name} ({device.vendor_platform})",
        "driver": device.driver_version,
        "device fingerprint": device.fingerprint,
        "verdict": f"{verdict.get('status', 'unknown')}: {verdict.get('text', '')}",
        "worst ratio": float(ratio) if isinstance(ratio, int | float) else None,
        "tokenizer": manifest.tokenizer.text,
        "format version": VERSION,
        "made with": ", ".join(f"{name} {text}" for name, text in manifest.versions.items()),
    }


def _tables(manifest: Manifest, plan: GraphPlan, library: Library) -> Iterator[Table]:
    yield Table(
        "entries",
        ("entry", "calls", "inputs", "outputs"),
        tuple(
            (
                name,
                len(plan.entries[name].calls) if name in plan.entries else None,
                sides.get("inputs", ""),
                sides.get("outputs", ""),
            )
            for name, sides in manifest.entries.items()
        ),
    )
    calls = Counter(call.operator for entry in library.entries.values() for call in entry.calls)
    for table in library_tables(library):
        if table.title == "operators":
            rows = tuple((row[0], calls[str(row[0])], *row[1:]) for row in table.rows)
            yield Table(table.title, (table.columns[0], "call sites", *table.columns[1:]), rows)
        elif table.title == "kernels":
            yield table
    yield Table(
        "files",
        ("file", "bytes", "SHA-256"),
        tuple((name, each.bytes, each.sha256) for name, each in sorted(manifest.files.items())),
    )
