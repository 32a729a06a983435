"""One model on several backends (``tapml compare``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from tapml.backends.child import JOBS
from tapml.backends.finding import Backend, find_backend
from tapml.backends.runner import Array
from tapml.comparing.data import Data, make_data, read_data
from tapml.comparing.localizing import Localizer
from tapml.comparing.processes import BackendFailedError, BackendProcess, Failure
from tapml.comparing.result import BackendResult, Comparison, PairResult
from tapml.comparing.verdicts import Thresholds, judge, truth_of
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tapml.models.resolve import zoo_folder
from tapml.runs.events import Watcher, ignore
from tapml.runs.phases import Phases
from tapml_targets.errors import InputError, SetupError

DEADLINE_SECONDS: Final = 600.0


def compare(
    model: str | Path,
    backends: Sequence[str],
    data: str | Path | Data | Mapping[str, Any],
    *,
    limits: Thresholds | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
    pool: Pool | None = None,
    watcher: Watcher = ignore,
) -> Comparison:
    """Run a model on several backends, compare all pairs, and find the layer where each parts.

    Parameters
    ----------
    model
        A file that the backends understand, such as ``.keras`` or ``.onnx``, the folder of a torch
        module, or the name of one that ships with tapml.
    backends
        At least two names, see :func:`tapml.backends.finding.backends`.
    data
        An ``.npz`` file or arrays by name: the inputs by their names, or ``x``; labels as ``y``.
    limits
        Thresholds; default: the paper's, and 1e-3 for a single element.
    deadline_seconds
        Time limit of every call of a backend; a longer one hangs.
    pool
        A pool of :data:`tapml.backends.child.JOBS`, for many models in a row: its servers then
        import the backends' libraries once. Default: one for this call.
    watcher
        Receives the progress.

    Raises
    ------
    InputError
        If the data does not fit, no backend can load the model, or there are too few backends.
    SetupError
        If a backend is not installed.
    """
    path = zoo_folder(str(model)) or Path(model)
    chosen = _chosen(path, backends)
    data = _data(data)
    phases = Phases(watcher)
    with ExitStack() as stack:
        processes = _processes(chosen, path.resolve(), pool, deadline_seconds, stack)
        outputs, inputs, failures = _extract(processes, data, phases)
        localizer = Localizer(processes, inputs, data, failures)
        pairs = []
        truth = truth_of(data.labels, list(outputs.values())) if outputs else None
        limits = limits or Thresholds()
        for first, second in combinations(processes, 2):
            with phases.phase(f"{first} and {second}") as phase:
                if first in outputs and second in outputs and truth is not None:
                    verdict = judge(outputs[first], outputs[second], truth, limits)
                    pair = PairResult((first, second), verdict.status, verdict.reason,
                                      metrics=verdict.metrics, worst=verdict.worst)  # fmt: skip
                    if verdict.status != "agree":
                        pair = localizer.inconsistent(pair, outputs)
                else:
                    pair = localizer.failed((first, second))
                phase.detail = f"{pair.status}: {pair.layer or pair.reason}"
            pairs.append(pair)
        labels = "none" if truth is None or truth.labels is None else (
            "from backends" if truth.from_backends else truth.task
        )  # fmt: skip
        return Comparison(
            str(model),
            len(data),
            labels,
            tuple(
                BackendResult(name, each.backend.description.title, each.versions,
                              round(each.seconds, 3), failures.get(name))
                for name, each in processes.items()
            ),
            tuple(pairs),
        )  # fmt: skip


def _extract(
    processes: Mapping[str, BackendProcess], data: Data, phases: Phases
) -> tuple[dict[str, dict[str, Array]], dict[str, Array], dict[str, Failure]]:
    """The outputs of every backend, the inputs by name, and the failures."""
    outputs: dict[str, dict[str, Array]] = {}
    inputs: dict[str, Array] = {}
    failures: dict[str, Failure] = {}
    for name, process in processes.items():
        with phases.phase(name) as phase, _recorded(name, failures):
            process.load()
            inputs = data.for_inputs(process.inputs)
            outputs[name] = process.run(inputs)
            versions = ", ".join(f"{key} {value}" for key, value in process.versions.items())
            phase.detail = f"{len(data)} instances, {versions}"
    if not any(each.inputs for each in processes.values()):
        said = "; ".join(f"{name}: {each.message}" for name, each in failures.items())
        raise InputError(f"no backend can load the model: {said}")
    return outputs, inputs, failures


@contextmanager
def _recorded(name: str, failures: dict[str, Failure]) -> Iterator[None]:
    try:
        yield
    except BackendFailedError as error:
        failures[name] = error.failure


def _chosen(model: Path, names: Sequence[str]) -> list[Backend]:
    if not model.exists():
        raise InputError(
            f"there is no {model}; expected a model: a .keras or .onnx file, or the folder of a "
            "torch module (tapml.from_torch)"
        )
    chosen = [find_backend(each) for each in dict.fromkeys(names)]
    if len(chosen) < 2:
        raise InputError(
            f"a comparison needs at least two backends, got {', '.join(names) or 'none'}"
        )
    for each in chosen:
        if not each.description.reads(model):
            raise InputError(
                f"{each.text} does not read {model.name}; it expects "
                f"{' or '.join(map(_wanted, each.description.formats))}"
            )
    missing = {each.text: each.missing() for each in chosen if each.missing()}
    if missing:
        wanted = dict.fromkeys(package for packages in missing.values() for package in packages)
        quoted = " ".join(f'"{each}"' for each in wanted)
        raise SetupError(f"{', '.join(missing)} cannot run here: pip install {quoted}")
    return chosen


def _wanted(form: str) -> str:
    return f"a {form} file" if form.startswith(".") else f"a folder with {form}"


def _processes(
    chosen: Sequence[Backend],
    model: Path,
    shared: Pool | None,
    deadline_seconds: float,
    stack: ExitStack,
) -> dict[str, BackendProcess]:
    pool = shared or stack.enter_context(Pool(JOBS))
    return {
        each.text: stack.enter_context(
            BackendProcess(
                each, model, pool, environment_of(each, preload=shared is not None),
                deadline_seconds,
            )
        )
        for each in chosen
    }  # fmt: skip


def environment_of(backend: Backend, *, preload: bool = False) -> Environment:
    """Where a backend's processes run; `preload`: its libraries are imported once for all."""
    description = backend.description
    return Environment(
        variables=description.variables,
        without=description.without,
        preload=tuple(description.packages) if preload else (),
    )


def _data(data: str | Path | Data | Mapping[str, Any]) -> Data:
    if isinstance(data, str | Path):
        return read_data(Path(data))
    return data if isinstance(data, Data) else make_data(data)
