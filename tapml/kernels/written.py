"""Hand-written kernels in the session's folder and in folders shared between sessions.

::

    <folder>/<operator>/<platform>/kernel.toml      and the sources beside it

A plan numbers its operators as it meets them: ``softmax_2`` of two models may be two functions, and
one function may have two names. In the first folder, the session's own, the name is enough. A
shared folder is asked by the operator's structural hash, whatever the kernel's folder is called;
a manifest without a hash counts there for the operator of its name whose parameters are those it
states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tapml.compiler.preflight import check
from tapml.graph.plan import Operator
from tapml.kernels.agreement import differing_parameter
from tapml.kernels.assembly import assemble
from tapml.kernels.manifest import MANIFEST, Manifest, read_manifest
from tapml_targets.errors import CompileError, LimitExceededError
from tapml_targets.library import Library
from tapml_targets.target import Target

OWN_FOLDER: Final = "kernels"
"""The folder of hand-written kernels in a session's."""
MAX_KERNELS: Final = 4096


@dataclass(frozen=True)
class WrittenKernel:
    """A hand-written kernel of an operator.

    Attributes
    ----------
    library
        What takes the compiled Library's place.
    folder
        Where it lies.
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
        The kernel all the same: what breaks which limit can be looked at.
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

    Attributes
    ----------
    unreadable
        What is wrong with manifests of shared folders that could not be read and were passed over;
        known after the first :meth:`find`.
    """

    def __init__(self, folders: Sequence[Path], target: Target) -> None:
        self.folders = tuple(folders)
        self.unreadable: list[str] = []
        self._target = target
        self._shared: list[list[Manifest]] | None = None

    def find(self, operator: Operator) -> WrittenKernel | None:
        """The kernel that takes the compiled one's place, read from disk now.

        Raises
        ------
        CompileError
            If there is one and it cannot be used; it names file and line, what was expected, what
            came.
        UnfitKernelError
            If the device's limits refuse it.
        """
        path = self.manifest_path(operator)
        return None if path is None else read_kernel(path, operator, self._target)

    def manifest_path(self, operator: Operator) -> Path | None:
        """The manifest that counts for an operator, None where there is none."""
        if not self.folders:
            return None
        place = kernel_folder(self.folders[0], operator.name, self._target.platform) / MANIFEST
        if place.is_file():
            return place
        if self._shared is None:
            self._shared = [self._read_all(folder) for folder in self.folders[1:]]
        for folder, manifests in zip(self.folders[1:], self._shared, strict=True):
            found = self._of(operator, folder, manifests)
            if found is not None:
                return found
        return None

    def _of(self, operator: Operator, folder: Path, manifests: Sequence[Manifest]) -> Path | None:
        """The manifest of a shared folder that is for an operator: by hash, else by what it says.

        Raises
        ------
        CompileError
            If one that bears the operator's name cannot be read, or does not say what it is for.
        """
        for manifest in manifests:
            if manifest.hash == operator.hash:
                return manifest.path
        place = kernel_folder(folder, operator.name, self._target.platform) / MANIFEST
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
        found = []
        for path in sorted(folder.glob(f"*/{self._target.platform}/{MANIFEST}"))[:MAX_KERNELS]:
            try:
                found.append(read_manifest(path))
            except CompileError as error:
                self.unreadable.append(str(error))
        return found


def kernel_folder(folder: Path, operator: str, platform: str) -> Path:
    """Where the kernel of an operator lies in a folder of kernels."""
    return folder / operator / platform


def read_kernel(path: Path, operator: Operator, target: Target) -> WrittenKernel:
    """Read a kernel by its manifest and hold it against operator and device.

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
