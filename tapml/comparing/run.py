"""One model on several backends (``tapml compare``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from tapml.backends.child import JOBS
from tapml.backends.finding import Backend, describe, find_backend, readers_of
from tapml.backends.keras_loading import CODE
from tapml.backends.runner import FEATURES, MASK, TOKENS, WRITTEN, WRITTEN_MASK, Array
from tapml.comparing.data import LABELS, SINGLE_INPUT, Data, make_data, read_data
from tapml.comparing.extraction import Extracted, Keeping, extract
from tapml.comparing.localizing import Localizer
from tapml.comparing.processes import BackendProcess
from tapml.comparing.result import Comparison, PairResult, where
from tapml.comparing.sessions import BACKENDS as SESSION_BACKENDS
from tapml.comparing.sessions import cases_of, is_plan
from tapml.comparing.stored import OutputStore, Run
from tapml.comparing.verdicts import Thresholds, Truth, judge, truth_of
from tapml.isolate.environment import Environment
from tapml.isolate.kept_environments import kept_environment
from tapml.isolate.pool import Pool
from tapml.models.converted import converted_folder
from tapml.models.resolve import file_hint, zoo_folder
from tapml.runs.events import Watcher, ignore
from tapml.runs.phases import Phases
from tapml_targets.errors import InputError, SetupError
from tapml_targets.platforms import DEFAULT_PLATFORM

DEADLINE_SECONDS: Final = 600.0
_DEVICES: Final = f"devices such as {DEFAULT_PLATFORM}:0"
_DIFFERENCES: Final = ("inconsistent", "nan", "shape")
_READ_OTHERWISE: Final = frozenset((SINGLE_INPUT, TOKENS, MASK, FEATURES, WRITTEN, WRITTEN_MASK))
ALL: Final = "all"
_HINTS: Final = {".h5": "; load it with Keras, and save it as a .keras file"}
_MIXES: Final = "an instance at a time, as the model makes something else of it among others"


def compare(
    model: str | Path,
    backends: str | Sequence[str],
    data: str | Path | Data | Array | Mapping[str, Any] | None = None,
    *,
    limits: Thresholds | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
    outputs: str | Path | None = None,
    layers: str | Path | None = None,
    code: str | Path | None = None,
    pool: Pool | None = None,
    watcher: Watcher = ignore,
) -> Comparison:
    """Run a model on several backends, compare all pairs, and find the layer where each parts.

    Parameters
    ----------
    model
        A file that the backends understand, such as ``.keras`` or ``.onnx``, the folder of a torch
        module or a language model, the name of one that ships with tapml, or the folder of a
        finished session.
    backends
        At least two names, also with commas between, see
        :func:`tapml.backends.finding.backends`; ``all`` is each that is installed and reads the
        model, without devices. Empty for a session: its source and its
        target.
    data
        An ``.npz`` file, a folder (see :func:`~tapml.comparing.data_folders.read_folder`), texts
        (see :func:`~tapml.comparing.texts.read_texts`), or arrays by name: the inputs by their
        names, or ``x``; labels as ``y``. An array is ``x``. None for a session: the cases that it
        was moved with.
    limits
        Thresholds; default: the paper's, and 1e-3 for a single element.
    deadline_seconds
        Time limit of every call of a backend; a longer one hangs.
    outputs
        A folder that keeps the outputs. What it has of these backends, in the releases that are
        installed here, is not run again, and what it has of others takes part: see
        :mod:`tapml.comparing.stored`. One backend is then enough, or none.
    layers
        A folder that gets the layer of each pair that differs: a model of it alone, what it read,
        and a script that shows it on both backends.
    code
        A Python file that defines the classes of a ``.keras`` file that are not Keras's own. It is
        run in the backends' processes, and may import files beside it.
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
    path = model_path(model)
    if isinstance(backends, str):
        backends = names_of(backends)
    if is_plan(path):
        backends = backends or SESSION_BACKENDS
        data = cases_of(path) if data is None else data
    if data is None:
        raise InputError("expected data: an .npz file, a folder, texts, or arrays by name")
    chosen = choose(path, backends, least=2 if outputs is None else 0)
    classes = own_code(path, code)
    data = _data(data).in_tokens(path)
    keeping = None if outputs is None else Keeping.of(Path(outputs), path, data, classes)
    phases = Phases(watcher)
    with ExitStack() as stack:
        processes = _processes(
            chosen, path.resolve(), pool, deadline_seconds, stack, phases, classes
        )
        found = extract(processes, data, phases, keeping)
        if keeping is not None:
            own = [tuple(each.backend.installed()) for each in processes.values()]
            others = [each for each in keeping.runs() if each.installed not in own]
            found.add_stored(others, keeping.store)
        localizer = Localizer(
            processes, found.inputs, data, found.failures, None if layers is None else Path(layers)
        )
        comparison = _compared(
            str(model), len(data), found, localizer, limits or Thresholds(),
            labels=data.labels, tokens=data.arrays, phases=phases,
        )  # fmt: skip
        read = {one.name for each in processes.values() for one in each.inputs}
        unread = sorted(set(data.arrays) - read - _READ_OTHERWISE) if read else []
        return replace(comparison, unread=tuple(unread))


def names_of(text: str) -> list[str]:
    """The names in a text, with commas or spaces between."""
    return text.replace(",", " ").split()


def compare_stored(
    outputs: str | Path, *, limits: Thresholds | None = None, watcher: Watcher = ignore
) -> list[Comparison]:
    """Compare the outputs in a folder, and run nothing: one result for each model and data set.

    Raises
    ------
    InputError
        If the folder has no two runs of one model on the same data, or a file is damaged.
    """
    store = OutputStore(Path(outputs))
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in store.runs():
        groups.setdefault((run.model_hash, run.data_hash), []).append(run)
    several = [each for each in groups.values() if len(each) > 1]
    if not several:
        raise InputError(
            f"{outputs} has no two runs of one model on the same data; expected what "
            "`tapml compare MODEL --backends NAME --data D --outputs FOLDER` keeps"
        )
    results = []
    for runs in several:
        found = Extracted()
        found.add_stored(runs, store)
        beside = store.arrays(tuple(runs[0].beside.items()))
        localizer = Localizer({}, {}, Data({}), found.failures)
        results.append(
            _compared(
                runs[0].model,
                runs[0].instances,
                found,
                localizer,
                limits or Thresholds(),
                labels=beside.pop(LABELS, None),
                tokens=beside,
                phases=Phases(watcher),
            )
        )
    return results


def _compared(
    model: str,
    instances: int,
    found: Extracted,
    localizer: Localizer,
    limits: Thresholds,
    *,
    labels: Array | None,
    tokens: Mapping[str, Array],
    phases: Phases,
) -> Comparison:
    """All pairs."""
    outputs = found.outputs
    truth = truth_of(labels, list(outputs.values())) if outputs else None
    pairs = []

    def judged(names: tuple[str, str], made: Mapping[str, Mapping[str, Array]]) -> PairResult:
        one, other = (made[name] for name in names)
        verdict = judge(one, other, truth or Truth("none"), limits, tokens, instances)
        return localizer.examined(names, verdict, made)

    for first, second in combinations([each.name for each in found.backends], 2):
        with phases.phase(f"{first} and {second}") as phase:
            if first in outputs and second in outputs:
                pair = judged((first, second), outputs)
                sought = pair.status in _DIFFERENCES and not pair.layer
                if sought and (single := localizer.singly(pair, outputs)):
                    pair = judged((first, second), single)
                    pair = replace(pair, reason=f"{pair.reason}; {_MIXES}")
            else:
                pair = localizer.failed((first, second))
            place = where(pair)
            phase.detail = f"{pair.status}: {pair.reason if place == '-' else place}"
        pairs.append(pair)
    said = "none" if truth is None or truth.labels is None else (
        "from backends" if truth.from_backends else truth.task
    )  # fmt: skip
    return Comparison(model, instances, said, tuple(found.backends), tuple(pairs))


def model_path(model: str | Path) -> Path:
    """A model's file or folder, by its path or the name of one that ships with tapml.

    Of a GGUF file or a .pt2 it is the folder that it is converted to. Raises InputError if there is
    none.
    """
    path = zoo_folder(str(model)) or Path(model)
    if not path.exists():
        raise InputError(
            f"there is no {model}; expected a model: a .keras or .onnx file, or the folder of a "
            "torch module (tapml.from_torch), a language model, or a session"
        )
    return converted_folder(path.resolve()) or path


def choose(model: Path, names: Sequence[str], least: int = 2) -> list[Backend]:
    """The backends of these names, each once; ``all`` is every one here that reads the model.

    Raises
    ------
    InputError
        If they are fewer than `least`, or one does not read the model.
    SetupError
        If one is not installed.
    """
    readers = readers_of(model)
    named = [each if describe(each).claims is None else _DEVICES for each in readers]
    hint = f"; it is read by {', '.join(named)}" if readers else (
        _HINTS.get(model.suffix, file_hint(model))
    )  # fmt: skip
    if ALL in names:
        every = [each.text for each in map(find_backend, readers)
                 if each.description.claims is None and not each.missing()]  # fmt: skip
        if not every:
            raise InputError(f"no backend that is installed reads {model.name or model}{hint}")
        names = [name for each in names for name in (every if each == ALL else [each])]
    chosen = [find_backend(each) for each in dict.fromkeys(names)]
    if len(chosen) < least:
        given = ", ".join(dict.fromkeys(names)) or "none"
        raise InputError(
            f"a comparison needs at least two backends, got {given} for {model.name or model}{hint}"
        )
    for each in chosen:
        if each.description.claims is not None and not each.variant:
            raise InputError(f"{each.text} is any device: name one, such as {DEFAULT_PLATFORM}:0")
        if not each.description.reads(model):
            raise InputError(
                f"{each.text} does not read {model.name or model}; it expects "
                f"{' or '.join(map(_wanted, each.description.formats))}{hint}"
            )
    missing = {each.text: each.missing() for each in chosen if each.missing()}
    if missing:
        wanted = dict.fromkeys(package for packages in missing.values() for package in packages)
        quoted = " ".join(f'"{each}"' for each in wanted)
        raise SetupError(f"{', '.join(missing)} cannot run here: pip install {quoted}")
    return chosen


def own_code(model: Path, code: str | Path | None) -> Path | None:
    """The file that defines classes of a model. Raises InputError if it does not exist."""
    if code is None:
        return None
    file = Path(code).resolve()
    if model.suffix != ".keras" or not file.is_file():
        other = model.suffix != ".keras"
        wrong = f"the model is {model.name}" if other else f"there is no file {code}"
        raise InputError(f"code is a Python file that defines classes of a .keras file; {wrong}")
    return file


def _wanted(form: str) -> str:
    return f"a {form} file" if form.startswith(".") else f"a folder with {form}"


def _processes(
    chosen: Sequence[Backend],
    model: Path,
    shared: Pool | None,
    deadline_seconds: float,
    stack: ExitStack,
    phases: Phases,
    code: Path | None,
) -> dict[str, BackendProcess]:
    environments = [
        stack.enter_context(_environment(each, phases, preload=shared is not None, code=code))
        for each in chosen
    ]
    pool = shared or stack.enter_context(Pool(JOBS))
    return {
        each.text: stack.enter_context(
            BackendProcess(each, model, pool, environment, deadline_seconds)
        )
        for each, environment in zip(chosen, environments, strict=True)
    }


def environment_of(
    backend: Backend, *, preload: bool = False, code: Path | None = None
) -> Environment:
    """Where a backend's processes run.

    Parameters
    ----------
    preload
        Whether its libraries are imported once for all.
    code
        Defines classes of the model, see :func:`compare`.
    """
    description = backend.description
    return Environment(
        variables={**description.variables, **({CODE: str(code)} if code else {})},
        without=description.without,
        preload=(*description.preload, *(description.packages if preload else ())),
        scratch=True,
    )


@contextmanager
def _environment(
    backend: Backend, phases: Phases, *, preload: bool, code: Path | None
) -> Iterator[Environment]:
    """Where a backend runs; the first use of another version makes it."""
    environment = environment_of(backend, preload=preload, code=code)
    if not backend.version:
        yield environment
        return
    with ExitStack() as stack:
        with phases.phase(f"environment of {backend.text}") as phase:
            python = stack.enter_context(
                kept_environment(
                    backend.requirements(),
                    imports=tuple(backend.description.packages)[:1],
                    said=lambda line: phase.progress(0, detail=line),
                )
            )
            phase.detail = str(python.parent.parent)
        yield replace(environment, python=python, lent=(backend.package.partition(".")[0],))


def _data(data: Any) -> Data:
    if isinstance(data, Data):
        return data
    if isinstance(data, str | Path):
        return read_data(Path(data))
    if hasattr(data, "__array__"):
        data = {SINGLE_INPUT: data}
    if not isinstance(data, Mapping):
        raise InputError(
            f"data is a file, a folder, an array or arrays by name, found {type(data).__name__}"
        )
    return make_data(data)
