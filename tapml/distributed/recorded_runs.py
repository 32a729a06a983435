"""Recordings of :func:`tapml.distributed.record`: reads them, and compares many ranks with one.

A rank's samples are found by their content among those of one process, so any sampler and any
order of ranks will do. The gradients that each rank had before anything was reduced are recorded,
so mistakes are named as in a check. No torch here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from tapml.distributed.explaining import explain
from tapml.distributed.judging import FLOAT32, FLOAT64, INPUT, Limits, judge, worst_place
from tapml.distributed.mistakes import Mistake
from tapml.distributed.rates import class_of
from tapml.distributed.results import Check, JobFacts, Outcome, RunResult, Setting
from tapml.distributed.run_records import Key, Run, Tensors, read_run
from tapml.distributed.wording import sentence
from tapml_targets.errors import InputError
from tapml_targets.installed import package_version

FORMAT: Final = "tapml-recording/1"
FACTS: Final = "recording.json"
START: Final = "start.safetensors"
# Clean float32 runs are within 1.3e-4 and wrong reductions from 2e-3 on, see docs/distributed.md.
_LIMITS: Final = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}
_KEPT: Final = 20

Slices: TypeAlias = "list[dict[str, NDArray[Any]]]"


@dataclass(frozen=True)
class Recorded:
    """A recording that was read.

    Attributes
    ----------
    folder
        Where it lies.
    facts
        Those of each rank.
    run
        The records of all ranks.
    slices
        By step, from 1, each rank's own gradients; empty if the engine shards parameters.
    precision
        The shortest floating-point format of parameters and outputs.
    """

    folder: Path
    facts: list[dict[str, Any]]
    run: Run
    slices: list[Slices]
    precision: str

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.facts)


@dataclass(frozen=True)
class _Samples:
    """What explanations need of the samples: see :class:`tapml.distributed.plan.Plan`."""

    weights: Mapping[str, Any]
    frozen: frozenset[str]
    count: int
    rows: Mapping[int, Sequence[tuple[int, ...] | None]]

    def samples_of(self, world: int, step: int) -> list[int]:
        return [0 if each is None else len(each) for each in self.rows[step][:world]]

    def covers(self, world: int, step: int) -> bool | None:
        found = [each for each in self.rows[step][:world] if each is not None]
        if len(found) < world:
            return None
        return sorted(row for each in found for row in each) == list(range(self.count))


def compare(
    one: str | os.PathLike[str],
    *many: str | os.PathLike[str],
    limit: float | None = None,
) -> Check:
    """Compare recordings of many ranks with the recording of one process.

    Parameters
    ----------
    one
        Folder of the recording of one process.
    many
        Folders of recordings of more ranks, at least one.
    limit
        Allowed error, relative to a tensor's largest value, after the start; default: by the
        shortest format that was seen, 1e-9 in float64, 1e-3 in float32, 5e-2 in shorter ones.

    Returns
    -------
    Check
        A result for each of `many`; their engine is called ``recorded``.

    Raises
    ------
    InputError
        If a folder holds no whole recording, `one` has several ranks, or nothing can be compared.
    """
    if not many:
        raise InputError("compare needs the recording of one process and at least one of many")
    if limit is not None and not 0 < limit < 1:
        raise InputError(f"limit must lie between 0 and 1, got {limit:g}")
    started = time.monotonic()
    tensors = Tensors()
    reference = read_recording(Path(one), tensors)
    if reference.world != 1:
        raise InputError(
            f"{one} has {reference.world} ranks; the first recording must be of one process"
        )
    results = tuple(
        _compared(reference, read_recording(Path(each), tensors), tensors, limit) for each in many
    )
    facts = reference.facts[0]
    steps = max(key[1] for key in reference.run.keys)
    frozen = [name for name, _, learns in facts["parameters"] if not learns]
    return Check(
        job=str(one),
        digest=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(),
        steps=steps,
        facts=JobFacts(
            samples=_samples_of(reference, 1),
            parameters=len(facts["parameters"]),
            frozen=len(frozen),
            elements=sum(size for _, size, _ in facts["parameters"]),
            random=False,
            batch_norm=tuple(facts["batch_norm"]),
            dropout=tuple(facts["dropout"]),
            twin=reference.precision == "float64",
            twin_reason=f"it is a recording in {reference.precision}",
        ),
        results=results,
        versions={"tapml": package_version("tapml") or "", "torch": facts["torch"]},
        seconds=time.monotonic() - started,
        measured=False,
    )


def read_recording(folder: Path, tensors: Tensors) -> Recorded:
    """Read all ranks; their tensors go to `tensors`. Raises InputError if one is not whole."""
    first = _facts(folder, 0)
    facts = [first, *(_facts(folder, rank) for rank in range(1, first["world"]))]
    for rank, each in enumerate(facts):
        if each["world"] != first["world"]:
            raise InputError(
                f"{rank_folder(folder, rank)} is of {each['world']} ranks, rank 0 of "
                f"{first['world']}: it is left of another recording; record again"
            )
    answers: list[dict[str, Any]] = []
    slices: list[list[dict[str, NDArray[Any]]]] = []
    formats: set[str] = {each.removeprefix("torch.") for each in first["dtypes"]}
    counts = []
    for rank in range(first["world"]):
        records: list[dict[str, Any]] = []
        reasons: dict[str, str] = {}
        steps = _steps(rank_folder(folder, rank))
        counts.append(len(steps))
        for number, path in enumerate(steps):
            head, values = _read(path)
            for each in head["records"]:
                records.append({**each, "value": values.get(each["digest"])})
            reasons |= head["not_compared"]
            formats |= set(head["dtypes"])
            if number:
                if len(slices) < number:
                    slices.append([{} for _ in facts])
                slices[number - 1][rank] = {
                    name: values[digest] for name, digest in head["slices"].items()
                }
        answer = {"records": records, "not_compared": reasons}
        answers.append({**answer, "seconds": 0.0, "random": False, "dtypes": {}})
    if min(counts) < 2:
        behind = counts.index(min(counts))
        raise InputError(
            f"{folder}: rank {behind} has recorded no step; it ended before optimizer.step()"
        )
    if len(set(counts)) > 1:
        least, most = min(counts) - 1, max(counts) - 1
        raise InputError(
            f"{folder}: rank {counts.index(min(counts))} has recorded {least} steps and another "
            f"{most}: it ended early, or steps less often"
        )
    precision = next((each for each in reversed(_LIMITS) if each in formats), "float32")
    return Recorded(folder, facts, read_run(answers, tensors), slices, precision)


def starting_values(folder: Path) -> dict[str, NDArray[Any]]:
    """Weights and buffers before the first step, of a recording of one process."""
    if _facts(folder, 0)["world"] != 1:
        raise InputError(f"{folder} is not a recording of one process")
    head, values = _read(rank_folder(folder, 0) / START)
    return {each["name"]: values[each["digest"]] for each in head["records"]}


def rank_folder(folder: Path, rank: int) -> Path:
    """The folder of a rank's recording."""
    return folder / f"rank-{rank}"


def _compared(one: Recorded, many: Recorded, tensors: Tensors, limit: float | None) -> RunResult:
    setting = Setting(
        engine="recorded", world=many.world, options={"folder": many.folder.resolve().name}
    )
    short = next(each for each in reversed(_LIMITS) if each in (one.precision, many.precision))
    run, rows = _aligned(one, many, tensors)
    base = FLOAT64 if short == "float64" else FLOAT32
    allowed = _LIMITS[short] if limit is None else limit
    steps = min(len(one.slices), len(many.slices))
    reference, run = _until(one.run, steps), _until(run, steps)
    # Weights at the start were copied, not computed.
    late = {key: allowed for key in one.run.keys if key[0] != "start"}
    limits = Limits(min(base.base, allowed), base.epsilon, late)
    judgement = judge(reference, run, tensors, limits)
    result = RunResult(
        setting=setting,
        outcome=Outcome.EQUAL,
        precision=short,
        rounding=judgement.worst if math.isfinite(judgement.worst) else None,
        compared=judgement.compared,
        not_compared=tuple(f"{name}: {why}" for name, why in judgement.not_compared.items()),
    )
    if not judgement.deviations:
        return result
    first = judgement.deviations[0]
    facts = one.facts[0]
    samples = _Samples(
        {},
        frozenset(name for name, _, learns in facts["parameters"] if not learns),
        _samples_of(one, first.step),
        rows,
    )

    def slices_of(step: int, _: Mapping[str, Any]) -> Slices:
        return many.slices[step - 1]

    known = bool(many.slices) and all(many.slices[max(first.step, 1) - 1])
    mistake = None
    if known or first.phase != "gradient":
        mistake = explain(judgement, reference, run, tensors, samples, short, slices_of)
    mistake = mistake or _suspected(facts)
    return msgspec.structs.replace(
        result,
        outcome=Outcome.INCONSISTENT,
        reason=sentence(first, many.world),
        phase=first.phase,
        step=first.step,
        tensor=first.tensor,
        ranks=first.ranks,
        ratio=first.ratio,
        error=first.error,
        limit=first.limit,
        place=worst_place(
            first, reference, run, tensors, "float64" if short == "float64" else "float32"
        ),
        mistake="" if mistake is None else mistake.text,
        remedy="" if mistake is None else mistake.remedy,
        deviations=judgement.deviations[:_KEPT],
        wrong=dict(Counter(each.phase for each in judgement.deviations)),
        layer=class_of(first.tensor, facts["modules"]),
    )


def _suspected(facts: Mapping[str, Any]) -> Mistake | None:
    """Layers whose result depends on which samples stand together; a recording cannot tell more."""
    kinds = [("BatchNorm", facts["batch_norm"]), ("dropout", facts["dropout"])]
    found = [f"{kind} ({names[0]})" for kind, names in kinds if names]
    if not found:
        return None
    return Mistake(
        f"perhaps {' and '.join(found)}: it depends on which samples stand together",
        "record without it to see what else differs; SyncBatchNorm (on GPUs), GroupNorm and "
        "LayerNorm do not depend on it",
    )


def _aligned(
    one: Recorded, many: Recorded, tensors: Tensors
) -> tuple[Run, dict[int, list[tuple[int, ...] | None]]]:
    """The run with the samples of each rank by their indices in one process's batch."""
    found: list[dict[Key, Any]] = []
    rows: dict[int, list[tuple[int, ...] | None]] = {}
    reasons = dict(many.run.not_compared)
    for records in many.run.ranks:
        given = {
            step: _rows(one.run.ranks[0], records, step, tensors)
            for step in sorted({key[1] for key in records if key[0] == "forward"})
        }
        for step, each in given.items():
            rows.setdefault(step, []).append(each)
        own = {}
        for key, record in records.items():
            if record.placement != "rows":
                own[key] = record
            elif (samples := given[key[1]]) is not None:
                own[key] = replace(record, rows=samples)
            else:
                reasons["hidden states"] = "a rank has samples that one process does not have"
        found.append(own)
    return replace(many.run, ranks=tuple(found), not_compared=reasons), rows


def _rows(
    whole: Mapping[Key, Any], own: Mapping[Key, Any], step: int, tensors: Tensors
) -> tuple[int, ...] | None:
    """A rank's samples among those of one process, by the content of the model's inputs."""
    names = [
        key
        for key, record in own.items()
        if key[:2] == ("forward", step) and _is_input(key[2]) and not record.shape
    ]
    pairs = []
    for key in names:
        mine = tensors.get(own[key].digest)
        theirs = tensors.get(whole[key].digest) if key in whole else None
        if mine is None or theirs is None or mine.shape[1:] != theirs.shape[1:]:
            continue
        pairs.append((mine, theirs))
    counts = {(len(mine), len(theirs)) for mine, theirs in pairs}
    if len(counts) != 1:
        return None
    places: dict[bytes, int] = {}
    mine_count, count = counts.pop()
    for row in range(count):
        places.setdefault(b"".join(theirs[row].tobytes() for _, theirs in pairs), row)
    found = [
        places.get(b"".join(mine[row].tobytes() for mine, _ in pairs)) for row in range(mine_count)
    ]
    return None if None in found else tuple(row for row in found if row is not None)


def _is_input(name: str) -> bool:
    return name == INPUT or name.startswith(f"{INPUT}[")


def _until(run: Run, steps: int) -> Run:
    """The run without later steps: recordings may have different numbers of them."""
    ranks = tuple(
        {key: record for key, record in records.items() if key[1] <= steps} for records in run.ranks
    )
    return replace(run, ranks=ranks)


def _samples_of(recorded: Recorded, step: int) -> int:
    records = recorded.run.ranks[0]
    found = [len(each.rows) for key, each in records.items() if key[:2] == ("forward", step)]
    return max(found, default=0)


def _facts(folder: Path, rank: int) -> dict[str, Any]:
    path = rank_folder(folder, rank) / FACTS
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): {folder} is no recording, or its rank "
            f"{rank} ended before tapml.distributed.record(...) was done"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from error
    if found.get("format") != FORMAT:
        raise InputError(f"{path} has the format {found.get('format')!r}, expected {FORMAT!r}")
    return found


def _steps(folder: Path) -> list[Path]:
    """The files of the start and of all steps, in order."""
    found = [folder / START]
    while (path := folder / f"step-{len(found)}.safetensors").exists():
        found.append(path)
    return found


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        with safe_open(path, framework="numpy") as file:
            head = json.loads(file.metadata()["tapml"])
            return head, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no step of a recording: {error}") from error
