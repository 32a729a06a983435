"""Replaces the numbers of a failing test by random ones that fail in the same way."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import structs

from tapml.bundle.random_inputs import STRATEGIES, Strategy, random_like
from tapml.bundle.traces import find_traces
from tapml.plan.graph_plan import Body, CallStep, Operator
from tapml.reduce.device import ReopeningDevice
from tapml.reduce.failure_kind import failure_causes, same_failure
from tapml.reduce.trials import Candidate, Trials
from tapml.replaying.failure import Failure
from tapml.replaying.results import ReplayResult
from tapml.repro.folder import Repro, device_like, read_repro
from tapml.repro.writing import write_repro
from tapml.suite.memory_case import MemoryCase
from tapml.verdicts.policy import Policy
from tapml_rpc.local import open_local
from tapml_targets.errors import InputError, MismatchError

FORMAT: Final = "tapml-synthetic/1"
DOCUMENT: Final = "synthetic.json"
"""The file that describes how the numbers were drawn."""

_LEFT_OUT: Final = "left out by --synthetic"


def write_synthetic(
    folder: Path, out: Path, *, device: str | None = None, allow_passing: bool = False
) -> tuple[Path, list[str]]:
    """Write a repro folder like another, without data of the model.

    Every input is replaced (:mod:`tapml.bundle.random_inputs`) and its expectations are computed,
    until one fails like the original on the device. The operator's origins, the test's name and the
    diagnosis are removed.

    Parameters
    ----------
    folder, out
        The original and the new repro folder.
    device
        The device to run it on; the device it failed on if None.
    allow_passing
        Write the first one if none fails.

    Returns
    -------
    tuple
        `out`, and a summary as lines of text.

    Raises
    ------
    MismatchError
        If no random numbers fail in the same way, or the original does not fail.
    InputError
        If the folder lacks the operator's definition, or the result would contain a trace of the
        model, which the message names; nothing is written.
    """
    repro = read_repro(folder)
    if repro.definition is None:
        raise InputError(
            f"{folder} has no definition of its operator (operator.tapml): write it again with "
            "`tapml offload` or `tapml replay --repro`"
        )
    operator, policy = nameless(repro.definition), _without_reasons(repro.policy)
    chosen_device = device or device_like(repro.device)
    with ReopeningDevice(lambda: open_local(chosen_device)) as opened:
        trials = Trials(operator, repro.library, policy, opened)
        symbols = dict(repro.case.symbols)
        whole = trials.run(Candidate(tuple(repro.case.read_inputs()), symbols))
        kinds = failure_causes(whole.verdict) if whole is not None else ()
        if not kinds and not allow_passing:
            raise MismatchError(
                f"the test itself does not fail on {opened.description.name}, so random numbers "
                "cannot be shown to fail alike; --allow-passing writes some anyway"
            )
        drawn = _draw(trials, repro, whole, symbols)
        if drawn is None or (drawn.kinds == () and not allow_passing):
            raise MismatchError(
                f"none of {len(STRATEGIES)} ways to draw random numbers fails as the original does "
                f"({', '.join(kinds)}): the failure depends on its values; nothing was written "
                "(--allow-passing writes it anyway)"
            )
        failure = replace(trials.failure(_renamed(drawn.result)), policy=policy)
    return _written(out, repro, failure, drawn)


@dataclass(frozen=True)
class _Drawn:
    """Random inputs that were run; `kinds` is empty if they do not fail like the original."""

    strategy: Strategy
    result: ReplayResult
    kinds: tuple[str, ...]


def _draw(
    trials: Trials, repro: Repro, whole: ReplayResult | None, symbols: dict[str, int]
) -> _Drawn | None:
    """The first random inputs that fail like `whole`, else the first that run."""
    passing = None
    for strategy in STRATEGIES:
        result = trials.run(Candidate(_inputs(repro, strategy), symbols))
        if result is None:
            continue
        if whole is not None and same_failure(whole.verdict, result.verdict):
            return _Drawn(strategy, result, failure_causes(result.verdict))
        passing = passing or _Drawn(strategy, result, ())
    return passing


def _written(out: Path, repro: Repro, failure: Failure, drawn: _Drawn) -> tuple[Path, list[str]]:
    document = {
        "format": FORMAT,
        "drawn": asdict(drawn.strategy),
        "fails_like_the_original": bool(drawn.kinds),
        "kinds": drawn.kinds,
        "kept": "shapes, dtypes, signs, scales as powers of two, shares of zeros, Inf and NaN",
    }
    write_repro(out, failure, documents={DOCUMENT: json.dumps(document, indent=1) + "\n"})
    traces = find_traces(out, repro)
    if traces:
        raise InputError(
            "traces of the model remain, so nothing is written: " + "; ".join(traces[:5])
        )
    verdict = failure.result.verdict
    says = f"like the original ({drawn.kinds[0]})" if drawn.kinds else "not like the original"
    return out, [
        f"random numbers ({drawn.strategy}) fail {says}",
        f"{verdict.status}: {verdict.reason}",
    ]


def _inputs(repro: Repro, strategy: Strategy) -> tuple[Any, ...]:
    generator = np.random.default_rng([20240229, strategy.seed])
    return tuple(
        random_like(raw, parameter.dtype, lifetime, strategy, generator)
        for raw, parameter, lifetime in zip(
            repro.case.read_inputs(), repro.operator.read, repro.lifetimes, strict=True
        )
    )


def nameless(operator: Operator) -> Operator:
    """The operator without anything that identifies its place in a model."""
    body = operator.body
    if body is not None:
        steps = tuple(
            structs.replace(step, site=f"step.{index}", origins=(), layer=None)
            if isinstance(step, CallStep)
            else step
            for index, step in enumerate(body.entry.steps)
        )
        inner = {name: replace(each, torch_forms=()) for name, each in body.operators.items()}
        body = Body(inner, replace(body.entry, steps=steps))
    return replace(operator, body=body, torch_forms=())


def _without_reasons(policy: Policy) -> Policy:
    """The policy without its free text."""
    overrides = tuple(replace(each, reason=_LEFT_OUT) for each in policy.overrides)
    return replace(policy, overrides=overrides, reason=_LEFT_OUT if policy.reason else "")


def _renamed(result: ReplayResult) -> ReplayResult:
    name = f"{result.operator}@synthetic"
    case = result.case
    assert isinstance(case, MemoryCase)  # noqa: S101 - trials make no others
    return replace(result, test=name, case=replace(case, id=name))
