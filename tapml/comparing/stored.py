"""Outputs of backends in a folder, so that another run, on another machine, compares with them.

::

    arrays/<SHA-256>.npy    an array; its name is the hash of the file
    runs/<SHA-256>.json     one backend on one model and one data set, see :class:`Run`

Folders of several machines may be copied into one another: names never clash.
"""

from __future__ import annotations

import hashlib
import io
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from tapml.backends.finding import Backend
from tapml.backends.runner import MASK, TOKENS, WRITTEN, WRITTEN_MASK, Array, Input
from tapml.comparing.data import Data
from tapml.comparing.processes import Failure
from tapml.durable.files import write_bytes
from tapml.isolate.imported_files import imported_beside
from tapml_targets.errors import InputError

_RUNS: Final = "runs"
_ARRAYS: Final = "arrays"
_LARGEST_BYTES: Final = 1 << 24
_WINDOW_BYTES: Final = 64 << 20
Hash: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class StoredInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See :class:`tapml.backends.runner.Input`."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one backend made of one model and one data set.

    Attributes
    ----------
    model, model_hash
        Its name, and the hash of its files.
    data_hash, instances
        Of the inputs and the labels.
    backend, title, versions, installed, machine, seconds
        What ran, where, and for how long; `installed` are the releases that tell it from another.
    inputs
        The model's.
    outputs
        (name, hash) of every output; empty where the backend failed.
    beside
        Hashes of what outputs are judged with, by name: labels, and the tokens of texts.
    failure
        Kind, message and place.
    """

    model: str
    model_hash: Hash
    data_hash: Hash
    instances: Annotated[int, Meta(ge=1)]
    backend: str
    title: str
    versions: dict[str, str]
    installed: tuple[str, ...]
    machine: str
    seconds: float
    inputs: tuple[StoredInput, ...]
    outputs: tuple[tuple[str, Hash], ...]
    beside: dict[str, Hash]
    failure: tuple[str, str, str] | None = None
    format: Literal["tapml-compare-run/1"] = "tapml-compare-run/1"

    def failed(self) -> Failure | None:
        """As a comparison holds it."""
        return None if self.failure is None else Failure(*self.failure)

    def takes(self) -> list[Input]:
        """The model's inputs."""
        return [Input(each.name, each.shape, each.dtype) for each in self.inputs]


class OutputStore:
    """Stored outputs in a folder; it is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def runs(self) -> list[Run]:
        """All runs, in the order of model, data and backend.

        Raises
        ------
        InputError
            If a file is no run.
        """
        found = [_read_run(each) for each in sorted((self._folder / _RUNS).glob("*.json"))]
        return sorted(
            found, key=lambda each: (each.model_hash, each.data_hash, each.backend, each.machine)
        )

    def find(self, model_hash: str, data_hash: str, backend: Backend) -> Run | None:
        """What this backend, in the releases that are installed here, made without a failure."""
        for each in self.runs():
            if (
                (each.model_hash, each.data_hash) == (model_hash, data_hash)
                and each.installed == tuple(backend.installed())
                and each.failure is None
            ):
                return each
        return None

    def arrays(self, hashes: Sequence[tuple[str, str]]) -> dict[str, Array]:
        """Arrays by name, verified.

        Raises
        ------
        InputError
            If one is missing or damaged.
        """
        return {name: self._array(digest) for name, digest in hashes}

    def add(self, run: Run) -> None:
        """Keep a run; an earlier one of the same backend on this machine is replaced.

        Raises
        ------
        SetupError
            If the folder cannot be written.
        """
        key = (run.model_hash, run.data_hash, *run.installed, run.machine)
        name = hashlib.sha256("\n".join(key).encode()).hexdigest()
        path = self._folder / _RUNS / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")

    def put(self, arrays: Mapping[str, Array]) -> tuple[tuple[str, str], ...]:
        """Keep arrays; (name, hash) of each."""
        return tuple((name, self._put(each)) for name, each in arrays.items())

    def _put(self, array: Array) -> str:
        stream = io.BytesIO()
        np.save(stream, np.ascontiguousarray(array), allow_pickle=False)
        content = stream.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        path = self._path(digest)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        return digest

    def _array(self, digest: str) -> Array:
        path = self._path(digest)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} is missing: copy the folder's {_ARRAYS}/ as well") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise InputError(f"{path} is damaged: remove it, and run that backend again")
        array: Array = np.load(io.BytesIO(content), allow_pickle=False)
        return array

    def _path(self, digest: str) -> Path:
        return self._folder / _ARRAYS / f"{digest}.npy"


def _read_run(path: Path) -> Run:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"{path} is larger than {_LARGEST_BYTES} bytes")
        return msgspec.json.decode(path.read_bytes(), type=Run)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is no stored run ({error}): remove it") from error


def machine_name() -> str:
    """Which machine stores a run."""
    return f"{platform.node()} ({platform.machine()})"


def hash_model(model: Path, code: Path | None = None) -> str:
    """The hash of a model's file, with those of its weights beside it, or of its folder's files.

    `code` is the file that defines classes of the model; what it imports from its folder counts.
    """
    # By what follows the model's own name, so that it may be called otherwise elsewhere.
    files = (
        {str(each.relative_to(model)): each for each in model.rglob("*") if each.is_file()}
        if model.is_dir()
        else {
            each.name.removeprefix(model.name): each
            for each in model.parent.iterdir()
            if each.name.startswith(model.name) and each.is_file()
        }
    )
    files |= {f"/{each.name}": each for each in _weights_elsewhere(model)}
    if code is not None:
        files[" code"] = code
        files |= {f" code/{name}": each for name, each in imported_beside(code).items()}
    whole = hashlib.sha256()
    for name, each in sorted(files.items()):
        with each.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{name} {content}\n".encode())
    return whole.hexdigest()


def _weights_elsewhere(model: Path) -> list[Path]:
    """The files of an ONNX model's weights that are not named after it."""
    if model.suffix != ".onnx":
        return []
    import onnx

    try:
        graph = onnx.load(model, load_external_data=False).graph
    except Exception:  # A broken file; its backends say so.
        return []
    names = {
        entry.value
        for each in graph.initializer
        for entry in each.external_data
        if entry.key == "location" and not entry.value.startswith(model.name)
    }
    found = [model.parent / each for each in sorted(names)]
    return [each for each in found if each.is_file()]


def hash_data(data: Data) -> str:
    """The hash of inputs and labels."""
    whole = hashlib.sha256()
    arrays = {**data.arrays, **({} if data.labels is None else {"y": data.labels})}
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.dtype.str} {array.shape} {data.images}\n".encode())
        rows = array if array.ndim else array[None]
        # A mapped array may be larger than the memory.
        step = max(1, _WINDOW_BYTES * len(rows) // max(1, rows.nbytes))
        for start in range(0, len(rows), step):
            whole.update(np.ascontiguousarray(rows[start : start + step]).tobytes())
    return whole.hexdigest()


def beside(data: Data) -> dict[str, Array]:
    """What outputs are judged with, besides themselves."""
    found: dict[str, Any] = {
        name: data.arrays[name]
        for name in (TOKENS, MASK, WRITTEN, WRITTEN_MASK)
        if name in data.arrays
    }
    return found if data.labels is None else {**found, "y": data.labels}


def names_of(runs: Sequence[Run], taken: Collection[str] = ()) -> list[str]:
    """A name for each run that tells it from the others: its backend, versions, machine.

    `taken` are names that others have.
    """
    ways: tuple[Callable[[Run], str], ...] = (
        lambda each: each.backend,
        lambda each: f"{each.backend} [{_versions(each)}]",
        lambda each: f"{each.backend} [{_versions(each)}; {each.machine}]",
    )
    found = [ways[0](each) for each in runs]
    for way in ways[1:]:
        found = [
            way(run) if found.count(name) > 1 or name in taken else name
            for run, name in zip(runs, list(found), strict=True)
        ]
    return found


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {version}" for name, version in run.versions.items())
