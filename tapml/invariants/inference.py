"""Invariants from runs that were right (algorithm 1 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from tapml.invariants.invariant import FORMAT, Invariant, InvariantSet, ranked, sentence
from tapml.invariants.no_collection import no_collection
from tapml.invariants.precondition import applies, deduce
from tapml.invariants.record import Window, windows_of
from tapml.invariants.relation import Example, Memory, Params, Relation, relations
from tapml.invariants.trace import Trace
from tapml.runs.wording import counted
from tapml_targets.errors import InputError

_LEAST_STEPS: Final = 2


class Run(msgspec.Struct, frozen=True, eq=False):
    """A training run: a name and its windows."""

    name: str
    windows: tuple[Window, ...]


def run_of(trace: Trace) -> Run:
    """The run of a stored trace. Raises InputError if it has too few steps to learn from."""
    if trace.steps < _LEAST_STEPS:
        raise InputError(
            f"{trace.folder} has {counted(trace.steps, 'complete training step')}; learning "
            f"needs at least {_LEAST_STEPS}, better 5"
        )
    steps, processes = counted(trace.steps, "step"), counted(len(trace.processes), "process")
    name = f"{trace.folder.name}: {steps}, {processes}"
    return Run(name, tuple(windows_of(trace.processes)))


def infer(
    runs: Sequence[Run], progress: Callable[[str, int], None] = lambda *_: None
) -> InvariantSet:
    """Learn what holds in all runs.

    Parameters
    ----------
    runs
        Runs that were right.
    progress
        Called with each relation's name and how many invariants it gave.
    """
    found: list[Invariant] = []
    with no_collection():
        for relation in relations().values():
            before = len(found)
            for params in _hypotheses(relation, runs):
                invariant = _learn(relation, params, runs)
                if invariant is not None:
                    found.append(invariant)
            progress(relation.name, len(found) - before)
    return ranked(InvariantSet(FORMAT, [run.name for run in runs], found))


def _hypotheses(relation: Relation, runs: Sequence[Run]) -> list[Params]:
    unique = {
        tuple(sorted(params.items())): params
        for run in runs
        for params in relation.hypotheses(run.windows)
    }
    return list(relation.widest([unique[key] for key in sorted(unique)]))


def _examples(relation: Relation, params: Params, run: Run) -> list[Example]:
    memory: Memory = {}
    return [
        example for window in run.windows for example in relation.examples(window, params, memory)
    ]


def _learn(relation: Relation, params: Params, runs: Sequence[Run]) -> Invariant | None:
    """The invariant of a hypothesis; None if it is superficial or cannot be told from chance."""
    by_run = [_examples(relation, params, run) for run in runs]
    passing = [example for examples in by_run for example in examples if example.holds]
    failing = [example for examples in by_run for example in examples if not example.holds]
    if len(passing) < relation.least:
        return None
    if relation.least > 1 and len({each.last.step for each in passing}) < _LEAST_STEPS:
        return None
    precondition = deduce(
        [each.records for each in passing], [each.records for each in failing], relation.avoided
    )
    if precondition is None:
        return None
    # Tested as the checker does it: what fails on its own runs is no invariant.
    if any(applies(precondition, each.records) for each in failing):
        return None
    held = [
        sum(each.holds and applies(precondition, each.records) for each in examples)
        for examples in by_run
    ]
    if sum(held) < relation.least:
        return None
    return Invariant(
        relation.name,
        dict(params),
        precondition,
        sum(held),
        sum(count > 0 for count in held),
        sentence(relation.name, params, precondition),
    )
