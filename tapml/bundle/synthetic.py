"""A failing test with random numbers in place of the model's, shown to fail in the same way."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.bundle.random_inputs import STRATEGIES, Strategy, random_like
from tapml.bundle.traces import find_traces
from tapml.carving.memory_case import MemoryCase
from tapml.carving.replay_repro import write_repro
from tapml.carving.replay_results import ReplayResult
from tapml.carving.repro_device import device_of
from tapml.carving.repro_failure import Failure
from tapml.carving.repro_folder import Repro, read_repro
from tapml.compare.policy import Policy
from tapml.graph.plan import Body, CallStep, Operator
from tapml.reduce.device import ReopeningDevice
from tapml.reduce.failure_kind import kinds_of, same_failure
from tapml.reduce.trials import Candidate, Trials
from tapml_rpc.local import open_local
from tapml_targets.errors import InputError, MismatchError

FORMAT: Final = "tapml-synthetic/1"
DOCUMENT: Final = "synthetic.json"
"""The file that says how the numbers were drawn."""

_LEFT_OUT: Final = "left out by --synthetic"


def write_synthetic(
    folder: Path, out: Path, *, device: str | None = None, allow_passing: bool = False
) -> tuple[Path, list[str]]:
    """Write a repro folder like another without anything of the model in it.

    Every tensor that is read is drawn anew (:mod:`tapml.bundle.random_inputs`), expectations are
    computed for it, and it is run on the device until it fails as the original does. Where the
    operator comes from, what the test was called and what a diagnosis said are left out.

    Parameters
    ----------
    folder, out
        The original and the new repro folder.
    device
        Where to run it; the device it failed on if None.
    allow_passing
        Write the first one where none fails.

    Returns
    -------
    tuple
        `out`, and what was done, in lines for a person.

    Raises
    ------
    MismatchError
        If no random numbers fail in the same way, or the original does not.
    InputError
        If the folder lacks the operator's definition, or a trace of the model is left, which is
        then named; nothing is written.
    """
    repro = read_repro(folder)
    if repro.definition is None:
        raise InputError(
            f"{folder} has no definition of its operator (operator.tapml): write it again with "
            "`tapml offload` or `tapml replay --repro`"
        )
    operator, policy = nameless(repro.definition), _without_reasons(repro.policy)
    chosen_device = device or device_of(repro)
    with ReopeningDevice(lambda: open_local(chosen_device)) as opened:
        trials = Trials(operator, repro.library, policy, opened)
        symbols = dict(repro.case.symbols)
        whole = trials.run(Candidate(tuple(repro.case.read_inputs()), symbols))
        kinds = kinds_of(whole.verdict) if whole is not None else ()
        if not kinds and not allow_passing:
            raise MismatchError(
                f"the test itself does not fail on {opened.description.name}, so random numbers "
                "cannot be shown to fail alike; --allow-passing writes some all the same"
            )
        drawn = _draw(trials, repro, whole, symbols)
        if drawn is None or (drawn.kinds == () and not allow_passing):
            raise MismatchError(
                f"none of {len(STRATEGIES)} ways to draw random numbers fails as the original does "
                f"({', '.join(kinds)}): the failure hangs on its values; nothing was written "
                "(--allow-passing writes it all the same)"
            )
        failure = replace(trials.failure(_renamed(drawn.result)), policy=policy)
    return _written(out, repro, failure, drawn)


@dataclass(frozen=True)
class _Drawn:
    """Random inputs that were run; no kinds where they do not fail as the original does."""

    strategy: Strategy
    result: ReplayResult
    kinds: tuple[str, ...]


def _draw(
    trials: Trials, repro: Repro, whole: ReplayResult | None, symbols: dict[str, int]
) -> _Drawn | None:
    """The first random inputs that fail as `whole` does, else the first that run."""
    passing = None
    for strategy in STRATEGIES:
        result = trials.run(Candidate(_inputs(repro, strategy), symbols))
        if result is None:
            continue
        if whole is not None and same_failure(whole.verdict, result.verdict):
            return _Drawn(strategy, result, kinds_of(result.verdict))
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
            "traces of the model are left, so nothing is written: " + "; ".join(traces[:5])
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
    """The operator without anything that says where in which model it is."""
    body = operator.body
    if body is not None:
        steps = tuple(
            replace(step, site=f"step.{index}", origins=(), layer=None)
            if isinstance(step, CallStep)
            else step
            for index, step in enumerate(body.entry.steps)
        )
        inner = {name: replace(each, torch_forms=()) for name, each in body.operators.items()}
        body = Body(inner, replace(body.entry, steps=steps))
    return replace(operator, body=body, torch_forms=())


def _without_reasons(policy: Policy) -> Policy:
    """The policy without the free text in it."""
    overrides = tuple(replace(each, reason=_LEFT_OUT) for each in policy.overrides)
    return replace(policy, overrides=overrides, reason=_LEFT_OUT if policy.reason else "")


def _renamed(result: ReplayResult) -> ReplayResult:
    name = f"{result.operator}@synthetic"
    case = result.case
    assert isinstance(case, MemoryCase)  # noqa: S101 - trials make no others
    return replace(result, test=name, case=replace(case, id=name))
