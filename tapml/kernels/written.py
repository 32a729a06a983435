"""Hand-written kernels in the session's folder and in folders shared between sessions.

::

    <folder>/<operator>/<platform>/kernel.toml      and the sources beside it

A plan numbers its operators in order: ``softmax_2`` of two models may be two functions, and one
function may have two names. The first folder, the session's own, is searched by name. A shared
folder is searched by the operator's structural hash, regardless of folder names; a manifest without
a hash applies there to the operator of its name with the parameters it states. The name of an
operator of our own says what it computes, so its kernel applies to all that a plan has of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tapml.compiler.preflight import check
from tapml.kernels.agreement import differing_parameter
from tapml.kernels.assembly import assemble
from tapml.kernels.manifest import MANIFEST, Manifest, read_manifest
from tapml.own_operators import own_operators
from tapml.plan.graph_plan import Operator
from tapml_targets.errors import CompileError, InputError, LimitExceededError
from tapml_targets.library import Library
from tapml_targets.target import Target

OWN_FOLDER: Final = "kernels"
"""The folder of hand-written kernels in a session's folder."""
MAX_KERNELS: Final = 4096
"""Most kernels of one platform in a shared folder."""

# What a plan adds to the name of the second function of that name.
_NUMBER: Final = re.compile(r"_\d+$")
_Stamp: TypeAlias = tuple[int, int, int]
_Shared: TypeAlias = "dict[Path, tuple[_Stamp, Manifest | str]]"


@dataclass(frozen=True)
class WrittenKernel:
    """A hand-written kernel of an operator.

    Attributes
    ----------
    library
        Library that replaces the compiled one.
    folder
        The kernel's folder.
    source
        Path of its (first) source file.
    files
        All of its files, the manifest first.
    """

    library: Library
    folder: Path
    source: str
    files: tuple[Path, ...]


class UnfitKernelError(LimitExceededError):
    """A hand-written kernel needs more than the device has.

    Attributes
    ----------
    library
        The kernel, for a look at what breaks which limit.
    """

    def __init__(self, message: str, library: Library) -> None:
        super().__init__(message)
        self.library = library


class WrittenKernels:
    """The hand-written kernels for one target.

    Parameters
    ----------
    folders
        The session's own folder first, then shared ones; the first that has a kernel of an operator
        wins. A folder need not exist.
    target
        Platform and limits.

    """

    def __init__(self, folders: Sequence[Path], target: Target) -> None:
        self.folders = tuple(folders)
        self._target = target
        self._shared: dict[Path, _Shared] = {}

    @property
    def unreadable(self) -> list[str]:
        """Errors of manifests in shared folders that the last :meth:`find` skipped."""
        known = (each for shared in self._shared.values() for _, each in shared.values())
        return [each for each in known if isinstance(each, str)]

    def find(self, operator: Operator) -> WrittenKernel | None:
        """Read the kernel that replaces the compiled one, if any.

        Raises
        ------
        CompileError
            If it cannot be used; names file, line, the expected and the actual value.
        UnfitKernelError
            If the device's limits refuse it.
        InputError
            If a shared folder holds more than :data:`MAX_KERNELS` kernels.
        """
        path = self.manifest_path(operator)
        return None if path is None else read_kernel(path, operator, self._target)

    def manifest_path(self, operator: Operator) -> Path | None:
        """The manifest for an operator, if any."""
        if not self.folders:
            return None
        place = kernel_folder(self.folders[0], operator.name, self._target.platform) / MANIFEST
        if place.is_file():
            return place
        for folder in self.folders[1:]:
            found = self._of(operator, folder, self._read_all(folder))
            if found is not None:
                return found
        return None

    def _of(self, operator: Operator, folder: Path, manifests: Sequence[Manifest]) -> Path | None:
        """The manifest of a shared folder for an operator: by hash, else by name and parameters.

        Raises
        ------
        CompileError
            If one with the operator's name cannot be read, or does not identify its operator.
        """
        for manifest in manifests:
            if manifest.hash == operator.hash:
                return manifest.path
        name = _NUMBER.sub("", operator.name)
        name = name if name in own_operators() else operator.name
        place = kernel_folder(folder, name, self._target.platform) / MANIFEST
        if not place.is_file():
            return None
        manifest = read_manifest(place)
        if manifest.hash:
            return None
        if manifest.parameters is None:
            raise manifest.places.error(
                (),
                f"a kernel in a shared folder must say what it is for: expected "
                f'hash = "{operator.hash}" or the parameters it was written for, for another '
                f"model may call another function {operator.name!r}",
            )
        return place if differing_parameter(manifest, operator) is None else None

    def _read_all(self, folder: Path) -> list[Manifest]:
        """The manifests of a shared folder; unchanged files are not parsed again."""
        paths = sorted(folder.glob(f"*/{self._target.platform}/{MANIFEST}"))
        if len(paths) > MAX_KERNELS:
            raise InputError(
                f"{folder} holds {len(paths):,} kernels for {self._target.platform}, at most "
                f"{MAX_KERNELS:,} are read; split it, and give only the folders that a model needs"
            )
        before = self._shared.get(folder, {})
        now = self._shared[folder] = {}
        for path in paths:
            try:
                stat = path.stat()
            except OSError:
                continue  # removed since the folder was listed
            stamp = stat.st_mtime_ns, stat.st_size, stat.st_ino
            known = before.get(path)
            now[path] = known if known and known[0] == stamp else (stamp, _read(path))
        return [each for _, each in now.values() if isinstance(each, Manifest)]


def _read(path: Path) -> Manifest | str:
    try:
        return read_manifest(path)
    except CompileError as error:
        return str(error)


def kernel_folder(folder: Path, operator: str, platform: str) -> Path:
    """Folder of an operator's kernel in a folder of kernels."""
    return folder / operator / platform


def read_kernel(path: Path, operator: Operator, target: Target) -> WrittenKernel:
    """Read a kernel by its manifest and check it against operator and device.

    Raises
    ------
    CompileError
        If it cannot be used.
    UnfitKernelError
        If the device's limits refuse it.
    """
    manifest = read_manifest(path)
    if manifest.target != target.platform:
        raise manifest.places.error(
            ("target",), f"expected {target.platform!r}, got {manifest.target[:80]!r}"
        )
    assembled = assemble(manifest, operator)
    problems = check(assembled.library, target.limits)
    if problems:
        raise UnfitKernelError(f"{path}: {'; '.join(map(str, problems))}", assembled.library)
    return WrittenKernel(
        library=assembled.library,
        folder=path.parent,
        source=str(assembled.files[1]),
        files=assembled.files,
    )
