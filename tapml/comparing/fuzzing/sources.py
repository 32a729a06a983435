"""What the models of a search are made from: nothing, or a user's model in one of three forms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tapml.backends.finding import Backend
from tapml.backends.runner import Array
from tapml.backends.steps import taken
from tapml.comparing.data import Data
from tapml.comparing.fuzzing import keras_mutants, torch_mutants
from tapml.comparing.fuzzing.mutants import mutated
from tapml.comparing.fuzzing.stacks import inputs, stack
from tapml.comparing.processes import BackendFailedError, BackendProcess
from tapml.comparing.run import environment_of
from tapml.comparing.stored import hash_model
from tapml.isolate.death import ChildDiedError
from tapml.isolate.pool import Pool
from tapml.models.resolve import zoo_folder
from tapml_targets.errors import InputError

MAKING: Final = (keras_mutants.JOB, torch_mutants.JOB)
"""Jobs that the pool of a search needs besides those of the backends."""
SAMPLES: Final = "samples.safetensors"
"""The file by which the folder of a torch module differs from that of a language model."""
_INSTANCES: Final = 4
STACK: Final = "model.onnx"
"""The file of a stack of layers."""
_LARGEST_MODEL: Final = 256 << 20


@dataclass(frozen=True)
class Source:
    """What makes the models of a search.

    Attributes
    ----------
    make
        Writes the model of a case to a path; why it cannot be made, or empty.
    arrays
        The data of every case.
    digest
        Of what the cases depend on.
    name
        Of the file or folder of a model.
    """

    make: Callable[[Sequence[Any], Path], str]
    arrays: dict[str, Array]
    digest: str
    name: str


def check_model(model: str | Path, data: Data | None) -> Path:
    """The file or folder of a model to mutate.

    Raises
    ------
    InputError
        If the model is too large, cannot be mutated, or has no data.
    """
    path = zoo_folder(str(model)) or Path(model)
    is_module = (path / SAMPLES).is_file()
    if not is_module and not (path.suffix in (".onnx", ".keras") and path.is_file()):
        raise InputError(
            f"{path} cannot be mutated; expected an .onnx or .keras file, or the folder of a torch "
            "module"
        )
    size = sum(each.stat().st_size for each in ([path, *path.rglob("*")]))
    if size > _LARGEST_MODEL:
        raise InputError(f"{path} is larger than {_LARGEST_MODEL} bytes: its mutants take too long")
    if data is None:
        raise InputError("a model's mutants need --data")
    return path


def source_of(
    model: str | Path | None,
    data: Data | None,
    backends: Sequence[Backend],
    pool: Pool,
    deadline_seconds: float,
    code: Path | None = None,
) -> Source:
    """The source of a user's model, or of stacks of layers without one.

    Raises
    ------
    InputError
        As :func:`check_model`, or if the first backend cannot load the model.
    """
    if model is None or data is None:
        return Source(_written(stack), inputs(), "", STACK)
    path = check_model(model, data)
    rows = Data(taken(data.arrays, slice(_INSTANCES)), images=data.images)
    if path.suffix == ".onnx":
        return _of_onnx(path, rows)
    # What mutates a model imports its library, which is why a process of a backend does.
    environment = environment_of(backends[0], code=code)
    with BackendProcess(backends[0], path, pool, environment, deadline_seconds) as process:
        try:
            process.load()
        except BackendFailedError as error:
            raise InputError(f"{path.name} cannot be loaded: {error}") from error
        arrays = rows.for_inputs(process.inputs)
    job, name = (
        (keras_mutants.JOB, "model.keras") if path.is_file() else (torch_mutants.JOB, "model")
    )

    def make(case: Sequence[Any], made: Path) -> str:
        payload = {"model": str(path.resolve()), "edits": [list(each) for each in case],
                   "made": str(made.resolve()), "arrays": arrays}  # fmt: skip
        call = pool.submit(job, payload, environment=environment, deadline_seconds=deadline_seconds)
        try:
            return str(call.result())
        except ChildDiedError as error:
            return f"the process that makes it {error.report.reason}"

    return Source(make, arrays, _digest(hash_model(path, code), arrays), name)


def _of_onnx(path: Path, rows: Data) -> Source:
    import onnx

    from tapml.backends.onnx_graph import OnnxGraph

    graph = OnnxGraph(path)
    arrays = rows.for_inputs(graph.inputs())

    def build(edits: Sequence[Any]) -> Any:
        mutant = mutated(graph.model, edits)
        mutant = onnx.shape_inference.infer_shapes(mutant, strict_mode=True)
        onnx.checker.check_model(mutant, full_check=True)
        return mutant

    return Source(_written(build), arrays, _digest(hash_model(path), arrays), "model.onnx")


def _written(build: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any], Path], str]:
    def make(case: Sequence[Any], made: Path) -> str:
        try:
            model = build(case)
        except Exception as error:  # Whatever onnx raises says that this is no model.
            return str(error).strip().partition("\n")[0][:200] or type(error).__name__
        made.write_bytes(model.SerializeToString())
        return ""

    return make


def _digest(model: str, arrays: dict[str, Array]) -> str:
    digest = hashlib.sha256(model.encode())
    for each in arrays.values():
        digest.update(each.tobytes())
    return digest.hexdigest()
