"""Runs a job on one device and under every setting, and compares.

Each run is forked from a process that has everything imported, and ends after it: no run leaves
state for the next, and a crash or a hang costs that run only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tapml.distributed.comparing import Comparison, first_line
from tapml.distributed.culprits import blame
from tapml.distributed.engine import Engine, find_engine
from tapml.distributed.frameworks import READY, TORCH, Framework, framework_of
from tapml.distributed.judging import FLOAT32, judge, not_finite
from tapml.distributed.keeping import Kept, OneDevice, digest_of, keeping
from tapml.distributed.machines.groups import machine_groups
from tapml.distributed.plan import USUAL, Plan, RunRequest
from tapml.distributed.results import Check, JobFacts, Outcome, RunResult, Setting, tensor_words
from tapml.distributed.run_records import Run, Tensors
from tapml.distributed.runner import FLOAT64, Pair, Runner
from tapml.distributed.settings_space import (
    candidates_here,
    check_options,
    neighbours,
    settings_of,
)
from tapml.distributed.triggers import with_triggers
from tapml.isolate.death import ChildDiedError, GroupDiedError
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tapml.runs.events import Event, Watcher, ignore
from tapml_targets.errors import InputError, SetupError, TapmlError
from tapml_targets.installed import install_hint, package_version

DEADLINE_SECONDS: Final = 60.0
SHORTEST_DEADLINE: Final = 2.0
MOST_RANKS: Final = 64


@dataclass(frozen=True)
class SettingChecked(Event):
    """A setting has its result; `done` of `total` have."""

    result: RunResult
    done: int
    total: int


def check(
    job: str | os.PathLike[str],
    *,
    worlds: Iterable[int] | None = None,
    engines: Iterable[str] | None = None,
    options: Mapping[str, Iterable[str]] | None = None,
    pruned: bool = False,
    pairs: bool = False,
    flip: bool = False,
    steps: int | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
    folder: str | os.PathLike[str] | None = None,
    watcher: Watcher = ignore,
    pool: Pool | None = None,
    workers: str = "",
) -> Check:
    """Check that training a job on N ranks equals training it on one device.

    Parameters
    ----------
    job
        A Python file that defines ``model()``, ``batch()`` and ``step(model, batch, optimizer)``,
        and may define ``optimizer(model)``, ``part(batch, rank, world)``, ``predict(model, batch)``
        and ``distribute(model, rank, world)``.
    worlds
        Numbers of ranks; default: the job's ``WORLDS``, else 1, 2 and 4.
    engines
        Names of engines; default: ``own`` if the job defines ``distribute``, else ``ddp`` and
        ``fsdp2``.
    options
        Values of the engines' own parameters, such as ``{"sharding": ["RW"]}``; default: all that
        can run here. Combinations that a rule prunes are left out.
    pruned
        Run just what the rules prune, to see whether they are right.
    pairs
        Compare every two settings with each other, too.
    flip
        Run what differs in one parameter from the first finding of each kind, to see which
        parameters trigger it.
    steps
        Training steps; default: the job's ``STEPS``, else 1.
    deadline_seconds
        Time limit of each run.
    folder
        Keeps the results: the next check there, of the same job, runs what is missing. Default:
        nothing is kept.
    watcher
        Receives the events.
    pool
        One that :func:`open_pool` made: checks that share it start faster. It stays open.
    workers
        The address of a scheduler of Dask, whose workers share the ranks of each run; default: all
        ranks are on this machine.

    Returns
    -------
    Check
        A result for each setting.

    Raises
    ------
    InputError
        If the job cannot be used, also on one device, or an argument is wrong.
    SetupError
        If PyTorch is missing, no process can be started, the folder is held or full, or no
        scheduler answers.
    """
    path = Path(job).resolve()
    names = None if engines is None else tuple(engines)
    asked = {name: tuple(values) for name, values in (options or {}).items()}
    payload = {
        "job": str(path),
        "worlds": None if worlds is None else _checked(worlds),
        "steps": steps,
        "deadline": deadline_seconds,
    }
    named = [find_engine(name) for name in names or ()]
    check_options(named, asked)
    framework = framework_of(named)
    if not deadline_seconds >= SHORTEST_DEADLINE:
        raise InputError(
            f"a deadline of at least {SHORTEST_DEADLINE:g} s is needed, got {deadline_seconds:g}"
        )
    if workers and framework.one_process:
        raise InputError(f"--workers: engine {named[0].name} drives all devices from one process")
    content = _content_of(path)
    if find_spec(framework.package) is None:
        hint = install_hint("host" if framework is TORCH else "compare")
        raise SetupError(f"this needs {framework.package}: {hint}")
    started = time.monotonic()
    versions = {
        "tapml": package_version("tapml") or "",
        "python": platform.python_version(),
        framework.package: package_version(framework.package) or "",
    }
    place = None if folder is None else Path(folder)
    with (
        keeping(place, watcher) as (journal, phases),
        nullcontext(pool) if pool is not None else _pool(framework, USUAL) as used,
        machine_groups(used, workers, path) if workers else nullcontext(used) as groups,
    ):
        with phases.phase("prepare") as phase:
            future = used.group(
                1, framework.prepare, payload, folder=True, deadline_seconds=deadline_seconds
            )
            (answer,) = _on_one_device(future)
            plan = Plan.of(path, answer, deadline_seconds)
            phase.detail = f"{len(plan.parameters)} parameters, {plan.samples} samples"
        chosen = [
            (setting, engine)
            for engine in plan.engines(names)
            for setting in settings_of(
                engine, plan.worlds, asked, pruned=pruned, traits=plan.traits
            )
        ]
        kept = Kept(
            journal,
            versions
            | _library_versions(engine for _, engine in chosen)
            | {"plan": digest_of(plan), "deadline": f"{deadline_seconds:g}"},
        )
        complete = all(kept.result(setting) is not None for setting, _ in chosen)
        told = kept.one_device()
        comparison = None
        if told is None or pairs or flip or not complete:
            environment = _environment_of(
                used, plan, framework, [engine.name for _, engine in chosen]
            )
            runner = Runner(groups, plan, environment, framework)
            with phases.phase("one device") as phase:
                told = _reference(runner)
                phase.detail = "with a float64 twin" if told.facts.twin else "float32 only"
            kept.keep_one_device(told)
            comparison = Comparison(runner, told.facts.random)
        judge_setting = partial(_kept_or_run, kept, comparison, told)
        results = []
        with phases.phase("settings", total=len(chosen)) as phase:
            for number, (setting, engine) in enumerate(chosen, 1):
                phase.progress(number - 1, len(chosen), setting.name)
                results.append(judge_setting(setting, engine))
                watcher(SettingChecked(results[-1], number, len(chosen)))
            for setting, engine in _flipped(results, chosen, plan.worlds) if flip else ():
                results.append(judge_setting(setting, engine))
                watcher(SettingChecked(results[-1], len(results), len(results)))
            paired = comparison.pairs(chosen) if pairs and comparison is not None else []
            count = sum(each.is_finding for each in results)
            phase.detail = f"{count} finding{'s' * (count != 1)}"
    return Check(
        job=str(path),
        digest=hashlib.sha256(content).hexdigest(),
        steps=plan.steps,
        facts=told.facts,
        results=tuple(with_triggers(results)),
        versions=versions,
        seconds=time.monotonic() - started,
        pairs=tuple(paired),
    )


def open_pool(engines: Iterable[str] = ()) -> Pool:
    """A pool for several checks, a context manager; importing PyTorch and engines takes seconds."""
    names = [name for name in engines if candidates_here(find_engine(name))]
    return _pool(framework_of([find_engine(name) for name in names]), (*USUAL, *names))


def _content_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _pool(framework: Framework, names: Iterable[str]) -> Pool:
    return Pool(framework.jobs, environment=_environment(framework, names))


def _reference(runner: Runner) -> OneDevice:
    """Run one device in both precisions, and once more for its determinism."""
    plan = runner.plan
    futures = [
        runner.start(RunRequest()),
        runner.start(RunRequest(observe=True)),
        runner.start(RunRequest(precision=FLOAT64, observe=True)),
    ]
    for future in futures[:2]:
        _on_one_device(future)
    first, second = runner.read(futures[0]), runner.read(futures[1])
    reason, twin = "", None
    try:
        twin = runner.read(futures[2])
    except GroupDiedError as error:
        reason = f"the job does not run in float64: {first_line(error.report.reason)}"
    lower = {} if twin is None else {k: v for k, v in twin.dtypes.items() if k != "float64"}
    for name, (_, operation) in lower.items():
        reason, twin = f"the job computes in {name} whatever its weights are ({operation})", None
    runner.roundoff = max((each for each, _ in second.dtypes.values()), default=FLOAT32.epsilon)
    runner.references[(), None] = Pair(first, twin)
    runner.twin = twin is not None
    facts = JobFacts(
        samples=plan.samples,
        parameters=len(plan.parameters),
        frozen=len(plan.frozen),
        elements=sum(size for _, size, _ in plan.parameters),
        random=first.random,
        batch_norm=plan.batch_norm,
        dropout=plan.dropout,
        twin=twin is not None,
        twin_reason=reason,
        trains=_is_there(first, runner.tensors, "update"),
    )
    if not _computes(first, runner.tensors):
        raise InputError(
            "step() computes nothing on one device: it calls no module, and no parameter gets a "
            "gradient or changes; call the model, backward() and optimizer.step() in it"
        )
    infinite = not_finite(first, runner.tensors)
    if infinite is not None:
        phase, step, name = infinite
        said = f"the {tensor_words(phase, name)} is NaN or infinite on one device (step {step})"
        return OneDevice(facts, Outcome.REFERENCE_NOT_FINITE, said)
    differing = judge(first, second, runner.tensors, FLOAT32).deviations
    if differing:
        said = (
            f"two runs on one device differ: {differing[0].words}; seed what step() draws, and "
            "use no clock"
        )
        return OneDevice(facts, Outcome.NOT_DETERMINISTIC, said)
    return OneDevice(facts)


def _computes(run: Run, tensors: Tensors) -> bool:
    """Whether any module was called, or any gradient or update is not zero."""
    called = any(phase == "forward" for phase, _, _ in run.ranks[0])
    return called or any(_is_there(run, tensors, phase) for phase in ("gradient", "update"))


def _is_there(run: Run, tensors: Tensors, phase: str) -> bool:
    """Whether any tensor of a phase is not zero."""
    found = (record.digest for (of, _, _), record in run.ranks[0].items() if of == phase)
    values = (tensors.get(each) for each in found if each)
    return any(value is not None and bool(value.any()) for value in values)


def _kept_or_run(
    kept: Kept, comparison: Comparison | None, told: OneDevice, setting: Setting, engine: Engine
) -> RunResult:
    """A setting's result: the folder's, else that of a run, which is kept."""
    found = kept.result(setting)
    if found is None:
        if told.outcome is not None or comparison is None:
            outcome = told.outcome or Outcome.NOT_RUN
            found = RunResult(setting=setting, outcome=outcome, reason=told.reason)
        else:
            found = comparison.result(setting, engine)
        kept.keep(found)
    return found


def _flipped(
    results: Sequence[RunResult], chosen: Iterable[tuple[Setting, Engine]], worlds: tuple[int, ...]
) -> list[tuple[Setting, Engine]]:
    """What differs in one parameter from the first finding of each kind, and was not run."""
    engines = {engine.name: engine for _, engine in chosen}
    kinds = {
        (each.setting.engine, each.mistake or each.first_wrong): each.setting
        for each in reversed(results)
        if each.is_finding
    }
    known = {each.setting.name for each in results}
    found: dict[str, tuple[Setting, Engine]] = {}
    for setting in kinds.values():
        engine = engines[setting.engine]
        for each in neighbours(engine, setting, worlds):
            if each.name not in known:
                found.setdefault(each.name, (each, engine))
    return list(found.values())


def _library_versions(engines: Iterable[Engine]) -> dict[str, str]:
    """Versions of what the engines import besides torch, by package."""
    roots = {each.partition(".")[0] for engine in engines for each in engine.settings.PRELOAD}
    if not roots - {"torch"}:
        return {}
    providers = packages_distributions()
    names = {name for root in roots - {"torch"} for name in providers.get(root, ())}
    return {name: package_version(name) or "" for name in sorted(names)}


def _environment_of(
    pool: Pool, plan: Plan, framework: Framework, names: Iterable[str]
) -> Environment:
    """The environment of the runs: with the imports of engines and job preloaded, if that works."""
    usual = _environment(framework, USUAL)
    filled = _environment(framework, (*USUAL, *names))
    filled = replace(filled, preload=tuple(dict.fromkeys((*filled.preload, *plan.preload))))
    if filled == usual:
        return usual
    try:
        pool.submit(READY, environment=filled).result()
    except ChildDiedError:
        return usual
    return filled


def _environment(framework: Framework, names: Iterable[str]) -> Environment:
    preload = dict.fromkeys(framework.preload)
    for name in names:
        engine = find_engine(name)
        if framework_of([engine]) == framework:
            preload |= dict.fromkeys(engine.settings.PRELOAD)
    loopback = "lo" if sys.platform == "linux" else "lo0"
    return Environment(
        # The flight recorder of torch knows what collectives a rank has called.
        variables={
            "TORCH_FR_BUFFER_SIZE": "2000",
            "GLOO_SOCKET_IFNAME": loopback,
            "OMP_NUM_THREADS": "1",
            **dict(framework.variables),
        },
        preload=tuple(preload),
    )


def _checked(worlds: Iterable[int]) -> list[int]:
    found = list(dict.fromkeys(worlds))
    if not found or any(not 1 <= each <= MOST_RANKS for each in found):
        raise InputError(f"worlds are whole numbers from 1 to {MOST_RANKS}, got {found}")
    return found


def _on_one_device(future: Future[list[Any]]) -> list[Any]:
    """The answer of a group of one; what the job raises there is the user's to repair."""
    try:
        return future.result()
    except GroupDiedError as error:
        report, cause = error.report, error.__cause__
        if isinstance(cause, TapmlError) and report.death is None:
            raise cause from None
        stage = blame(report).stage
        where = f" in {stage!r}" if stage else ""
        raise InputError(
            f"the job fails on one device{where}: it {first_line(report.reason)}; repair that first"
        ) from error
