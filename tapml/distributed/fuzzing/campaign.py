"""Checks generated models under an engine's settings, model by model, in a folder that resumes.

A model's folder holds its job, its genome, the run folder of its check, and, once all its settings
are checked, the results. Killed, the same command goes on with the settings that are missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from tapml.distributed.checking import DEADLINE_SECONDS, check, open_pool
from tapml.distributed.fuzzing.generating import KINDS, TABLES, generate
from tapml.distributed.fuzzing.genome import Genome
from tapml.distributed.fuzzing.patching import JOB, read_patch, write_patched
from tapml.distributed.fuzzing.source import source_of
from tapml.distributed.fuzzing.spreading import Case, spread
from tapml.distributed.results import Check
from tapml.durable.files import write_bytes, write_text, writing
from tapml.isolate.pool import Pool
from tapml.runs.events import Event, Watcher, ignore
from tapml_targets.errors import InputError

MODELS: Final = "models"
GENOME: Final = "genome.json"
RESULT: Final = "result.json"
_WORLDS: Final = (1, 2, 4)


class ModelResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a generated model told.

    Attributes
    ----------
    name
        Of the model's folder.
    key
        What the results depend on: the job, and the arguments of the check.
    failure
        Why it cannot be used, also on one device; empty if it can.
    check
        The results; None after a failure.
    """

    name: str
    key: str
    failure: str = ""
    check: Check | None = None


@dataclass(frozen=True)
class ModelChecked(Event):
    """All settings of a model are checked; `done` of `total` models are."""

    result: ModelResult
    done: int
    total: int


@dataclass(frozen=True)
class Campaign:
    """What a fuzzer checks.

    Attributes
    ----------
    engines, worlds, options
        The settings, as for :func:`tapml.distributed.check`.
    kinds
        Of models, see :data:`~tapml.distributed.fuzzing.generating.KINDS`.
    models
        How many of each kind. Every second one is the one before it with frozen layers.
    seed
        The same seed gives the same models.
    samples
        Of a batch; None for 2,400 with tables, as published, else 48.
    mixing
        Whether BatchNorm and dropout are among the layers.
    patch
        A Python file that every job loads last: what it defines replaces the job's functions, and
        what it changes in a library holds for the run. None for nothing.
    deadline_seconds
        Of each run.
    """

    engines: tuple[str, ...]
    worlds: tuple[int, ...] = _WORLDS
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    models: int = 4
    seed: int = 0
    samples: int | None = None
    mixing: bool = False
    patch: Path | None = None
    deadline_seconds: float = DEADLINE_SECONDS


def run_campaign(
    folder: str | os.PathLike[str],
    campaign: Campaign,
    *,
    watcher: Watcher = ignore,
    pool: Pool | None = None,
    workers: str = "",
) -> list[ModelResult]:
    """Check all models; those whose results the folder has are read.

    With `workers`, the address of a scheduler of Dask, its workers check them.

    Raises
    ------
    InputError
        If an argument is wrong.
    SetupError
        If PyTorch is missing, no process can be started, or the folder is held or full.
    """
    place = Path(folder)
    kinds = campaign.kinds or usual_kinds(campaign.engines)
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"unknown kind of model {kind!r}; known: {', '.join(KINDS)}")
    names = [
        (f"{kind}-{campaign.seed}-{index}", kind, index)
        for index in range(campaign.models)
        for kind in kinds
    ]
    if workers:
        return _spread(place, campaign, names, workers, watcher)
    found = []
    with nullcontext(pool) if pool is not None else open_pool(campaign.engines) as used:
        for number, (name, kind, index) in enumerate(names, 1):
            genome = generate(kind, campaign.seed, index, campaign.samples, mixing=campaign.mixing)
            result = check_genome(place / MODELS / name, genome, campaign, used, watcher)
            found.append(result)
            watcher(ModelChecked(result, number, len(names)))
    return found


def check_genome(
    folder: Path, genome: Genome, campaign: Campaign, pool: Pool, watcher: Watcher = ignore
) -> ModelResult:
    """Check one model in a folder of its own."""
    source = source_of(genome, f"The generated model {folder.name}.")
    patch = read_patch(campaign.patch)
    key = _key(source, patch, campaign)
    kept = read_result(folder)
    if kept is not None and kept.key == key:
        return kept
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JOB, source)
    write_bytes(folder / GENOME, msgspec.json.encode(genome))
    job = folder / JOB if not patch else write_patched(folder, patch)
    try:
        checked = check(
            job,
            worlds=campaign.worlds,
            engines=campaign.engines,
            options=campaign.options,
            deadline_seconds=campaign.deadline_seconds,
            folder=folder / "run",
            watcher=watcher,
            pool=pool,
        )
        result = ModelResult(name=folder.name, key=key, check=checked)
    except InputError as error:
        result = ModelResult(name=folder.name, key=key, failure=str(error))
    write_bytes(folder / RESULT, msgspec.json.encode(result))
    return result


def _spread(
    place: Path,
    campaign: Campaign,
    names: Sequence[tuple[str, str, int]],
    workers: str,
    watcher: Watcher,
) -> list[ModelResult]:
    """Check what the folder lacks on the workers of Dask, and keep each result as it comes."""
    patch = read_patch(campaign.patch)
    found: dict[str, ModelResult] = {}
    cases, keys = [], {}
    for name, kind, index in names:
        genome = generate(kind, campaign.seed, index, campaign.samples, mixing=campaign.mixing)
        folder = place / MODELS / name
        source = source_of(genome, f"The generated model {name}.")
        keys[name] = _key(source, patch, campaign)
        kept = read_result(folder)
        if kept is not None and kept.key == keys[name]:
            found[name] = kept
            continue
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / JOB, source)
        write_bytes(folder / GENOME, msgspec.json.encode(genome))
        cases.append(
            Case(
                name=name,
                source=source,
                patch=patch,
                engines=campaign.engines,
                worlds=campaign.worlds,
                options={each: tuple(values) for each, values in campaign.options.items()},
                deadline_seconds=campaign.deadline_seconds,
            )
        )
    for name, answer in spread(workers, cases) if cases else ():
        if isinstance(answer, str):
            # Not kept: the next try may have another worker.
            result = ModelResult(name=name, key=keys[name], failure=answer)
        else:
            checked = msgspec.msgpack.decode(answer, type=Check)
            result = ModelResult(name=name, key=keys[name], check=checked)
            write_bytes(place / MODELS / name / RESULT, msgspec.json.encode(result))
        found[name] = result
        watcher(ModelChecked(result, len(found), len(names)))
    return [found[name] for name, _, _ in names]


def read_result(folder: Path) -> ModelResult | None:
    """The results of a model; None if they are not complete or not readable."""
    try:
        return msgspec.json.decode((folder / RESULT).read_bytes(), type=ModelResult)
    except (OSError, msgspec.MsgspecError):
        return None


def read_genome(folder: Path) -> Genome:
    """The model of a folder. Raises InputError if it cannot be read."""
    try:
        found: Genome = msgspec.json.decode((folder / GENOME).read_bytes(), type=Genome)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{folder / GENOME} cannot be read: {error}") from error
    return found


def model_folders(folder: Path) -> Iterator[Path]:
    """The folders of all models of a fuzzer."""
    models = folder / MODELS
    return iter(sorted(models.iterdir()) if models.is_dir() else ())


def usual_kinds(engines: Sequence[str]) -> tuple[str, ...]:
    """All kinds of models that the engines take and whose libraries are here."""
    kinds = TABLES if set(engines) == {"torchrec"} else KINDS
    return tuple(each for each in kinds if each != "dlrm" or find_spec("torchrec") is not None)


def _key(source: str, patch: str, campaign: Campaign) -> str:
    arguments: Iterable[object] = (
        source,
        patch,
        campaign.engines,
        campaign.worlds,
        sorted(campaign.options.items()),
        campaign.deadline_seconds,
    )
    return hashlib.sha256(repr(arguments).encode()).hexdigest()
