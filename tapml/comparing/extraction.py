"""The outputs of every backend: run in its process, or as a store has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tapml.backends.runner import Array
from tapml.backends.steps import in_steps, window_of
from tapml.comparing.data import Data
from tapml.comparing.processes import BackendFailedError, BackendProcess, Failure
from tapml.comparing.result import BackendResult
from tapml.comparing.stored import (
    OutputStore,
    Run,
    StoredInput,
    beside,
    hash_data,
    hash_model,
    machine_name,
    names_of,
)
from tapml.comparing.texts import read_tokens
from tapml.comparing.tokens import without_padding
from tapml.runs.phases import Phase, Phases
from tapml_targets.errors import InputError, UnsupportedOperatorError


@dataclass
class Extracted:
    """What there is to compare, by the backend's name.

    Attributes
    ----------
    outputs
        By name, in order; no backend that failed.
    inputs
        All instances, by the input's name; empty where nothing was loaded here.
    failures
        Of the backends that gave no output.
    backends
        All of them.
    """

    outputs: dict[str, dict[str, Array]] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    backends: list[BackendResult] = field(default_factory=list)

    def add_stored(self, runs: Sequence[Run], store: OutputStore) -> None:
        """Runs of other machines or versions, under names of their own."""
        names = names_of(runs, {each.name for each in self.backends})
        for name, run in zip(names, runs, strict=True):
            failure = run.failed()
            if failure is None:
                self.outputs[name] = store.arrays(run.outputs)
            else:
                self.failures[name] = failure
            title = f"{run.title}, stored on {run.machine}"
            self.backends.append(BackendResult(name, title, run.versions, run.seconds, failure))


@dataclass(frozen=True)
class Keeping:
    """Where the outputs of one model on one data set are kept."""

    store: OutputStore
    model: str
    model_hash: str
    data_hash: str

    @classmethod
    def of(cls, folder: Path, model: Path, data: Data, code: Path | None = None) -> Keeping:
        """In a folder; `code` defines classes of the model."""
        return cls(OutputStore(folder), model.name, hash_model(model, code), hash_data(data))

    def runs(self) -> list[Run]:
        """What the folder has of this model and data."""
        return [
            each
            for each in self.store.runs()
            if (each.model_hash, each.data_hash) == (self.model_hash, self.data_hash)
        ]

    def found(self, process: BackendProcess) -> dict[str, Array] | None:
        """What this backend made before, and what the process then knows without a start."""
        run = self.store.find(self.model_hash, self.data_hash, process.backend)
        if run is None:
            return None
        process.inputs, process.versions = run.takes(), run.versions
        process.seconds = run.seconds
        return self.store.arrays(run.outputs)

    def keep(
        self,
        process: BackendProcess,
        data: Data,
        outputs: Mapping[str, Array],
        failure: Failure | None,
    ) -> None:
        """Store what a backend made."""
        backend = process.backend
        self.store.add(
            Run(
                model=self.model,
                model_hash=self.model_hash,
                data_hash=self.data_hash,
                instances=len(data),
                backend=backend.text,
                title=backend.description.title,
                versions=process.versions,
                installed=tuple(backend.installed()),
                machine=machine_name(),
                seconds=round(process.seconds, 3),
                inputs=tuple(StoredInput(i.name, i.shape, i.dtype) for i in process.inputs),
                outputs=self.store.put(outputs),
                beside=dict(self.store.put(beside(data))),
                failure=None if failure is None else (failure.kind, failure.message, failure.place),
            )
        )


def extract(
    processes: Mapping[str, BackendProcess], data: Data, phases: Phases, keeping: Keeping | None
) -> Extracted:
    """Run what is not stored.

    Raises
    ------
    InputError
        If the data does not fit, or no backend can load the model.
    """
    found = Extracted()
    for name, process in processes.items():
        with phases.phase(name) as phase:
            stored = keeping.found(process) if keeping is not None else None
            with _recorded(name, found.failures):
                if stored is None:
                    process.load()
                found.inputs = data.for_inputs(process.inputs)
                found.outputs[name] = (
                    _run(process, found.inputs, data, phase) if stored is None else stored
                )
            failure = found.failures.get(name)
            if keeping is not None and stored is None:
                keeping.keep(process, data, found.outputs.get(name, {}), failure)
            if failure is None:
                versions = (f"{key} {value}" for key, value in process.versions.items())
                said = [f"{len(data)} instances", *versions]
            else:
                said = [f"{failure.kind}: {failure.message}"]
            phase.detail = ", ".join([*said, *(["as stored"] if stored else [])])
        found.backends.append(
            BackendResult(name, process.backend.description.title, process.versions,
                          round(process.seconds, 3), failure)
        )  # fmt: skip
    if processes and not any(each.inputs for each in processes.values()):
        names: dict[str, list[str]] = {}
        for name, each in found.failures.items():
            names.setdefault(each.message, []).append(name)
        if not names:
            raise InputError("the model takes no input, so that its outputs are constants")
        lines = "; ".join(f"{', '.join(each)}: {message}" for message, each in names.items())
        raise InputError(f"no backend can load the model: {lines}")
    return found


def _run(
    process: BackendProcess, inputs: Mapping[str, Array], data: Data, phase: Phase
) -> dict[str, Array]:
    """What a backend makes of all instances, which it gets a window at a time."""
    _, mask = read_tokens(data.arrays)
    names: list[str] = []
    window = window_of(inputs, process.inputs)
    done = 0

    def run(some: Mapping[str, Array]) -> list[Array]:
        nonlocal done
        found = process.run(some)
        names[:] = found
        done += window or len(data)
        phase.progress(min(done, len(data)), len(data))
        return list(found.values())

    values = in_steps(run, inputs, window)
    return {name: without_padding(each, mask) for name, each in zip(names, values, strict=True)}


@contextmanager
def _recorded(name: str, failures: dict[str, Failure]) -> Iterator[None]:
    try:
        yield
    except BackendFailedError as error:
        failures[name] = error.failure
    except UnsupportedOperatorError as error:  # Outputs of windows that do not fit together.
        failures[name] = Failure("unsupported", str(error))
