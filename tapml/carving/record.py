"""Carving (section III-C of the paper): runs real prompts and records every call site."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from tapml.carving.recorder import Recorder, WeightDigests
from tapml.carving.storing_client import open_storing
from tapml.execute.arrays import Array
from tapml.execute.device_reference import reference_facts
from tapml.execute.executor import Executor
from tapml.execute.program import Program
from tapml.suite import definitions
from tapml.suite.folder import check_target, partial_folder, publish
from tapml.suite.index import (
    connect_index,
    create_index,
    finish_index,
    insert_definitions,
)
from tapml.suite.permutation import PermutationFinder
from tapml.suite.selection import Filters, Selector
from tapml.suite.suite import Suite
from tapml.suite.tensors import PACKS_NAME
from tapml.workloads import workload_of
from tapml.workloads.workload import Workload
from tapml_targets.errors import InputError, SetupError

DEFAULT_NEW_TOKENS: Final = 8


class CarvedModel(Protocol):
    """The model interface of carving: a loaded or a stored model (:mod:`tapml.workloads`)."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def weights_hash(self) -> str:
        """Identifies the weights."""


@dataclass(frozen=True)
class CarveProgress:
    """Progress of a carve: the current prompt, the number of all, tests and bytes so far."""

    prompt: int
    prompts: int
    step: int
    tests: int
    stored_bytes: int


Progress: TypeAlias = Callable[[CarveProgress], None]


def carve(
    model: CarvedModel,
    executor: Executor,
    cases: Sequence[Any],
    path: str | Path,
    *,
    filters: Filters | None = None,
    max_new_tokens: int = DEFAULT_NEW_TOKENS,
    budget_bytes: int | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
    durable: bool = False,
) -> Suite:
    """Run prompts through prefill and decode and record the inputs and outputs of every call site.

    The suite is written to ``<path>.partial`` and renamed when it is complete. On an error or an
    interruption that folder is removed. After a kill it remains, can be opened with the tests it
    has, and the next carve to `path` replaces it.

    Parameters
    ----------
    model
        Its workload prepares the inputs of the entries.
    executor
        Runs the entries, on the reference if nothing is placed on a device. Its state is preserved.
    cases
        Cases of the model's workload, for a decoder prompts; or their plain form, token ids. At
        least one.
    path
        The suite's folder, which must not exist unless `overwrite`.
    filters
        Filters on tests; None for everything.
    max_new_tokens
        Tokens that a decoder generates per prompt, at least 1: one prefill and a decode step for
        each but the first.
    budget_bytes
        Limit on the suite's tensor bytes, excluding weights and permutations; None for none. Under
        a budget, the first call site of every operator in every entry has priority, then the others
        in execution order (:class:`~tapml.suite.selection.Selector`). The selection is
        deterministic, and the suite records what was left out.
    progress
        Called after every run.
    overwrite
        Whether to replace a suite at `path`.
    durable
        Whether to sync the suite to disk before renaming it, as protection against a power failure.
        Not needed for a suite that can be carved again.

    Returns
    -------
    Suite
        Open.

    Raises
    ------
    InputError
        If a case is empty or too long, a filter matches nothing, `path` exists, or an operator
        overwrites its inputs.
    SetupError
        If the disk is full or not writable, or another carve writes to `path`.
    """
    target = Path(path)
    filters = filters or Filters()
    filters.check(executor.plan)
    definitions.check_roles(executor.plan.operators)
    if budget_bytes is not None and budget_bytes < 0:
        raise InputError(f"budget_bytes: expected at least 0, got {budget_bytes}")
    if not cases:
        raise InputError("carving needs at least one case")
    workload = workload_of(model)
    cases = [workload.as_case(case) for case in cases]
    if filters.steps:
        max_new_tokens = min(max_new_tokens, max(filters.steps) + 1)
    workload.check(cases, max_new_tokens)
    check_target(target, overwrite=overwrite)
    selector = Selector(filters, budget_bytes, PermutationFinder(executor.reference))
    if budget_bytes is not None:
        selector.expected = _expected(workload, executor, cases[0], max_new_tokens, filters)
    facts = {
        "complete": False,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model.name,
        "weights_hash": model.weights_hash,
        "plan_hash": definitions.pack_plan(executor.plan).plan_hash,
        "filters": asdict(filters),
        "max_new_tokens": max_new_tokens,
        "budget_bytes": budget_bytes,
        "reference": reference_facts(executor.reference),
    }
    state = executor.snapshot_state()
    try:
        with partial_folder(target) as folder:
            _record(
                _Work(model, workload, executor, cases, max_new_tokens, progress),
                folder,
                selector,
                facts,
            )
            publish(folder, target, overwrite=overwrite, durable=durable)
    except (OSError, sqlite3.Error) as error:
        raise SetupError(
            f"the suite cannot be written to {target} ({error}): "
            "free some space or carve to another folder"
        ) from error
    finally:
        executor.restore_state(state)
    return Suite.open(target)


@dataclass(frozen=True)
class _Work:
    """The runs to record."""

    model: CarvedModel
    workload: Workload[Any]
    executor: Executor
    cases: Sequence[Any]
    max_new_tokens: int
    progress: Progress | None

    def run(self, recorder: Recorder, selector: Selector) -> int:
        """Run all cases; return the most decode steps that the budget left out."""
        left_out = 0
        runner = _RecordingRunner(self.executor, recorder)
        for number, case in enumerate(self.cases):
            recorder.prompt(case.token_ids, case.text)
            for step in self.workload.run(runner, case, self.max_new_tokens):
                if self.progress is not None:
                    self.progress(
                        CarveProgress(
                            number,
                            len(self.cases),
                            step,
                            recorder.tests,
                            recorder.stored_bytes,
                        )
                    )
                if selector.exhausted:
                    left_out += self.max_new_tokens - 1 - step
                    break
        return left_out


def _record(work: _Work, folder: Path, selector: Selector, facts: Mapping[str, Any]) -> None:
    plan = work.executor.plan
    packs = folder / PACKS_NAME
    packs.mkdir()
    connection = create_index(folder, facts)
    try:
        insert_definitions(
            connection,
            [(o.name, o.hash, definitions.pack_parameters(o)) for o in plan.operators.values()],
            {"operators": definitions.pack_plan(plan).operators},
        )
        connection.close()
        weights = WeightDigests(work.model.weights_hash, work.executor.weights)
        with open_storing() as process:
            process.open(folder, PACKS_NAME)
            recorder = Recorder(process, selector, weights)
            steps_left_out = work.run(recorder, selector)
            recorder.finish()
        connection = connect_index(folder)
        finish_index(
            connection,
            {
                "complete": True,
                "tests": recorder.tests,
                "runs": recorder.runs,
                "budget_exhausted": selector.exhausted,
                "operators_left_out": selector.left_out(plan),
                "tests_left_out": [
                    [entry, operator, count]
                    for (entry, operator), count in sorted(selector.left_out_tests.items())
                ],
                "steps_left_out": steps_left_out,
            },
        )
    finally:
        connection.close()


class _RecordingRunner:
    """An executor whose runs are recorded."""

    def __init__(self, executor: Executor, recorder: Recorder) -> None:
        self._executor = executor
        self._recorder = recorder

    def reset(self) -> None:
        self._executor.reset()

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self._executor.run(entry, inputs, sink=self._recorder)


def _expected(
    workload: Workload[Any],
    executor: Executor,
    first: Any,
    max_new_tokens: int,
    filters: Filters,
) -> dict[str, Program]:
    """A program of each entry that will run, for which room is kept under a budget."""
    return {
        entry: executor.program(entry, inputs, recorded=True)
        for entry, steps, inputs in workload.expected(first, max_new_tokens)
        if any(filters.run(entry, step) for step in steps)
    }
