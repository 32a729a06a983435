"""Making a package from a session that has ended with every operator on the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from tapml.models.tensor_file import stream_tensors, tensors_header
from tapml.package.files import recover_package
from tapml.package.manifest import (
    LIBRARY,
    MANIFEST,
    PLAN,
    README,
    RUN,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Manifest,
)
from tapml.package.shipped import of_session, open_passed
from tapml.package.texts import RUN_SCRIPT, readme
from tapml.package.writer import check_place, new_package
from tapml.plan import format as plan_format
from tapml.plan.graph_plan import Entry
from tapml.plan.plan_notes import notes_of
from tapml_targets import library_format
from tapml_targets.portable import in_portable_code

_README_BYTES: Final = 64 << 10


@dataclass(frozen=True)
class MadePackage:
    """What was written; `recovered` reports leftovers of a killed process, and is mostly empty.

    `notes` are those of the plan (:func:`tapml.plan.plan_notes.notes_of`).
    """

    path: Path
    nbytes: int
    manifest: Manifest
    recovered: str = ""
    notes: tuple[str, ...] = ()


def make_package(
    session: Path,
    out: Path | None = None,
    *,
    archive: bool = False,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> MadePackage:
    """Write a session's model, kernels and weights as something that ships.

    The same session gives the same bytes. Kernels that a device would have to compile with a
    library of its own are compiled here where that library is
    (:func:`tapml_targets.portable.in_portable_code`).

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
    finished = open_passed(session)
    path = out or _default_place(session, archive=archive)
    recovered = recover_package(path)
    check_place(path, archive=archive, force=force)
    shipped = of_session(finished)
    contents = {
        PLAN: plan_format.pack(shipped.plan),
        LIBRARY: library_format.pack(in_portable_code(shipped.library)),
        RUN: RUN_SCRIPT.encode(),
        **shipped.licences,
    }
    if shipped.tokenizer is not None:
        contents[shipped.note.file] = shipped.tokenizer
    if shipped.chat_template is not None:
        contents[TOKENIZER_CONFIG] = shipped.chat_template.to_bytes()
    total = sum(each.nbytes for each in shipped.weights.values())
    header = tensors_header(shipped.weights, shipped.dtypes)
    written = sum(map(len, contents.values())) + len(header) + total
    with new_package(path, archive=archive, nbytes=written + _README_BYTES) as package:
        for name, content in contents.items():
            package.add(name, content)
        with package.stream(WEIGHTS, len(header) + total) as sink:
            stream_tensors(
                sink,
                shipped.weights,
                shipped.dtypes,
                progress=None if progress is None else lambda done: progress(done, total),
            )
        manifest = Manifest(
            model=shipped.model,
            entries={name: _signature(each) for name, each in shipped.plan.entries.items()},
            device=shipped.device,
            verdict=shipped.verdict,
            tokenizer=shipped.note,
            versions=shipped.versions,
            weights_header_sha256=sha256(header).hexdigest(),
            files=package.files,
            sample=shipped.sample,
        )
        notes = notes_of(shipped.plan)
        package.add(README, readme(manifest, tuple(shipped.licences), notes).encode())
        # Last: a package with a manifest is complete.
        package.add(MANIFEST, manifest.to_bytes())
    nbytes = sum(each.bytes for each in package.files.values())
    return MadePackage(path, nbytes, manifest, recovered, notes)


def _default_place(session: Path, *, archive: bool) -> Path:
    # "." and ".." have no name.
    named = session if session.name not in ("", "..") else session.resolve()
    return named.with_name(f"{named.name}-package{'.zip' if archive else ''}")


def _signature(entry: Entry) -> dict[str, str]:
    def tensors(names: tuple[str, ...]) -> str:
        values = [entry.values[name] for name in names]
        return ", ".join(f"{v.name} {v.dtype} [{', '.join(map(str, v.shape))}]" for v in values)

    return {"inputs": tensors(entry.inputs), "outputs": tensors(entry.outputs)}
