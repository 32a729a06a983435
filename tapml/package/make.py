"""Making a package from a session that has ended with every operator on the target."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from tapml.graph import plan_format
from tapml.graph.plan import Entry
from tapml.models.tensor_file import stream_tensors, tensors_header
from tapml.offload.finished import open_finished
from tapml.package.codecs import packaged_tokenizer
from tapml.package.files import recover_package
from tapml.package.manifest import (
    LIBRARY,
    MANIFEST,
    PLAN,
    README,
    RUN,
    TOKENIZER,
    WEIGHTS,
    Manifest,
)
from tapml.package.slim_plan import slim
from tapml.package.texts import RUN_SCRIPT, readme
from tapml.package.writer import check_place, new_package
from tapml_targets import library_format
from tapml_targets.errors import InputError
from tapml_targets.installed import package_version

Array = npt.NDArray[Any]

_LICENCES: Final = ("LICENSE", "LICENCE", "COPYING", "NOTICE")
_MOST_LICENCES: Final = 8
_LARGEST_LICENCE: Final = 1 << 20
_VERSIONS: Final = ("tapml", "apache-tvm", "apache-tvm-ffi", "torch", "transformers", "numpy")
_README_BYTES: Final = 64 << 10


@dataclass(frozen=True)
class MadePackage:
    """What was written.

    Attributes
    ----------
    path
        The folder or archive.
    nbytes
        Bytes of its files.
    manifest
        What it says of itself.
    recovered
        What a killed process had left there and what became of it, a sentence; mostly empty.
    """

    path: Path
    nbytes: int
    manifest: Manifest
    recovered: str = ""


def make_package(
    session: Path,
    out: Path | None = None,
    *,
    archive: bool = False,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> MadePackage:
    """Write a session's model, kernels and weights as something that ships.

    The same session gives the same bytes.

    Parameters
    ----------
    session
        Its folder.
    out
        Where; ``<session>-package`` beside the session if None, with ``.zip`` for an archive.
    archive
        Whether it is one file.
    force
        Whether a package that is there is replaced.
    progress
        Called with the bytes of weights written so far, and all of them.

    Raises
    ------
    InputError
        If the session has not ended with every operator on the target, or something is in the way.
    SetupError
        If it cannot be written: then nothing of it is there, and what was there stays.
    """
    finished = open_finished(session)
    if finished.validated is None or finished.verdict.get("status") != "pass":
        raise InputError(
            f"the report of the session in {session} is missing, damaged or not a pass, and a "
            f"package says what it was validated on: go on with `tapml offload --session {session}`"
        )
    path = out or _default_place(session, archive=archive)
    recovered = recover_package(path)
    check_place(path, archive=archive, force=force)
    contents = {
        PLAN: plan_format.pack(slim(finished.plan)),
        LIBRARY: library_format.pack(finished.library),
        RUN: RUN_SCRIPT.encode(),
    }
    licences = _licences(finished.model_folder)
    contents |= licences
    note, tokenizer = packaged_tokenizer(finished.model_folder, finished.texts)
    if tokenizer is not None:
        contents[TOKENIZER] = tokenizer
    weights = {name: finished.weights[name] for name in finished.plan.weights}
    dtypes = {name: each.dtype for name, each in finished.plan.weights.items()}
    total = sum(each.nbytes for each in weights.values())
    header = tensors_header(weights, dtypes)
    written = sum(map(len, contents.values())) + len(header) + total
    with new_package(path, archive=archive, nbytes=written + _README_BYTES) as package:
        for name, content in contents.items():
            package.add(name, content)
        with package.stream(WEIGHTS, len(header) + total) as sink:
            stream_tensors(
                sink,
                weights,
                dtypes,
                progress=None if progress is None else lambda done: progress(done, total),
            )
        manifest = Manifest(
            model=finished.decoder,
            entries={name: _signature(each) for name, each in finished.plan.entries.items()},
            device=finished.validated,
            verdict=finished.verdict,
            tokenizer=note,
            versions=_versions(),
            weights_header_sha256=sha256(header).hexdigest(),
            files=package.files,
        )
        package.add(README, readme(manifest, tuple(licences)).encode())
        # Last: what has a manifest is whole.
        package.add(MANIFEST, manifest.to_bytes())
    nbytes = sum(each.bytes for each in package.files.values())
    return MadePackage(path, nbytes, manifest, recovered)


def _default_place(session: Path, *, archive: bool) -> Path:
    # As it was given where it ends in a name, so that what is printed is short; "." has none.
    named = session if session.name not in ("", "..") else session.resolve()
    return named.with_name(f"{named.name}-package{'.zip' if archive else ''}")


def _licences(folder: Path) -> dict[str, bytes]:
    """The licence files of the model's folder."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.iterdir()):
        known = path.stem.upper().startswith(_LICENCES) and path.suffix in ("", ".txt", ".md")
        if known and path.is_file() and path.stat().st_size <= _LARGEST_LICENCE:
            found[path.name] = path.read_bytes()
    return dict(list(found.items())[:_MOST_LICENCES])


def _signature(entry: Entry) -> dict[str, str]:
    def tensors(names: tuple[str, ...]) -> str:
        values = [entry.values[name] for name in names]
        return ", ".join(f"{v.name} {v.dtype} [{', '.join(map(str, v.shape))}]" for v in values)

    return {"inputs": tensors(entry.inputs), "outputs": tensors(entry.outputs)}


def _versions() -> dict[str, str]:
    found = {name: package_version(name) for name in _VERSIONS}
    known = {name: version for name, version in found.items() if version is not None}
    return {"tapml": "source", **known, "python": platform.python_version()}
