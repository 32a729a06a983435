"""Carving (section III-C of the paper): real prompts run, and every call site is recorded."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from tapml.carving import definitions
from tapml.carving.index import (
    connect_index,
    create_index,
    finish_index,
    insert_definitions,
)
from tapml.carving.movement import Movements
from tapml.carving.recorder import Recorder
from tapml.carving.selection import Filters, Selector
from tapml.carving.storing_client import open_storing
from tapml.carving.suite import Suite
from tapml.carving.suite_folder import check_target, partial_folder, publish
from tapml.carving.suite_tensors import PACKS_NAME
from tapml.carving.weights import WeightDigests
from tapml.execute.arrays import Array
from tapml.execute.executor import Executor
from tapml.execute.generate import DECODE, PREFILL, Decoder, check_lengths, greedy
from tapml.execute.program import Program
from tapml_targets.errors import InputError, SetupError

DEFAULT_NEW_TOKENS: Final = 8


class CarvedModel(Decoder, Protocol):
    """What carving asks of a model: :class:`tapml.models.LoadedModel`."""

    @property
    def weights_hash(self) -> str:
        """Identifies the weights."""


class PromptLike(Protocol):
    """A prompt of :mod:`tapml.models.prompts`."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt's tokens."""

    @property
    def text(self) -> str | None:
        """The prompt's text, where there is one."""


@dataclass(frozen=True)
class CarveProgress:
    """How far a carve is: the prompt in hand and the number of all, tests and bytes so far."""

    prompt: int
    prompts: int
    step: int
    tests: int
    stored_bytes: int


Progress: TypeAlias = Callable[[CarveProgress], None]


def carve(
    model: CarvedModel,
    executor: Executor,
    prompts: Sequence[PromptLike | Sequence[int]],
    path: str | Path,
    *,
    filters: Filters | None = None,
    max_new_tokens: int = DEFAULT_NEW_TOKENS,
    budget_bytes: int | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
    durable: bool = False,
) -> Suite:
    """Run prompts through prefill and decode and record what every call site reads and writes.

    The suite is written to ``<path>.partial`` and renamed when it is complete. On an error or an
    interruption that folder is removed; after a kill it stays, opens with the tests it has, and
    the next carve to `path` replaces it.

    Parameters
    ----------
    model
        Prepares the inputs of the entries.
    executor
        Runs them; with nothing placed on a device, on the reference. Its state is left as it was.
    prompts
        Prompts, or their token ids; at least one.
    path
        The suite's folder, which must not exist unless `overwrite`.
    filters
        What is carved; None for everything.
    max_new_tokens
        Tokens generated per prompt, at least 1: one prefill and a decode step for each but the
        first.
    budget_bytes
        Bytes of tensors the suite may hold, weights and orders (tables that say how an operator
        rearranges its input) apart; None for no bound. When it is small,
        the first call site of every operator in every entry comes first, then the others in the
        order in which they run (:class:`~tapml.carving.selection.Selector`). The same carve keeps
        the same tests, and the suite records what was left out.
    progress
        Called after every run.
    overwrite
        Whether a suite at `path` is replaced.
    durable
        Whether to wait until the suite is on the disk before it gets its name: then a power failure
        right after the carve cannot harm it. What can be carved again need not wait.

    Returns
    -------
    Suite
        Open.

    Raises
    ------
    InputError
        If a prompt is empty or too long, a filter matches nothing, `path` exists, or an operator
        overwrites its inputs.
    SetupError
        If the disk is full or not writable, or another carve writes to `path`.
    """
    target = Path(path)
    filters = filters or Filters()
    filters.check(executor.plan)
    definitions.check_roles(executor.plan.operators)
    if budget_bytes is not None and budget_bytes < 0:
        raise InputError(f"budget_bytes: expected 0 or more, got {budget_bytes}")
    if not prompts:
        raise InputError("carving needs at least one prompt")
    pairs = [_tokens_and_text(prompt) for prompt in prompts]
    if filters.steps:
        max_new_tokens = min(max_new_tokens, max(filters.steps) + 1)
    for token_ids, _ in pairs:
        check_lengths(model, len(token_ids), max_new_tokens)
    check_target(target, overwrite=overwrite)
    selector = Selector(filters, budget_bytes, Movements(executor.reference))
    if budget_bytes is not None:
        selector.expected = _expected(model, executor, pairs[0][0], max_new_tokens, filters)
    facts = {
        "complete": False,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model.name,
        "weights_hash": model.weights_hash,
        "plan_hash": definitions.pack_plan(executor.plan).plan_hash,
        "filters": asdict(filters),
        "max_new_tokens": max_new_tokens,
        "budget_bytes": budget_bytes,
    }
    state = executor.snapshot_state()
    try:
        with partial_folder(target) as folder:
            _record(
                _Work(model, executor, pairs, max_new_tokens, progress), folder, selector, facts
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
    """What runs while a recorder watches."""

    model: CarvedModel
    executor: Executor
    prompts: Sequence[tuple[tuple[int, ...], str | None]]
    max_new_tokens: int
    progress: Progress | None

    def run(self, recorder: Recorder, selector: Selector) -> int:
        """Run all prompts; return the most decode steps that a full budget left out."""
        left_out = 0
        runner = _RecordingRunner(self.executor, recorder)
        for number, (token_ids, text) in enumerate(self.prompts):
            recorder.prompt(token_ids, text)
            for generated in greedy(self.model, runner, token_ids, self.max_new_tokens):
                if self.progress is not None:
                    self.progress(
                        CarveProgress(
                            number,
                            len(self.prompts),
                            generated.step,
                            recorder.tests,
                            recorder.stored_bytes,
                        )
                    )
                if selector.exhausted:
                    left_out += self.max_new_tokens - 1 - generated.step
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
    """An executor whose runs a recorder sees."""

    def __init__(self, executor: Executor, recorder: Recorder) -> None:
        self._executor = executor
        self._recorder = recorder

    def reset(self) -> None:
        self._executor.reset()

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self._executor.run(entry, inputs, sink=self._recorder)


def _tokens_and_text(prompt: PromptLike | Sequence[int]) -> tuple[tuple[int, ...], str | None]:
    if isinstance(prompt, Sequence):
        return tuple(int(token) for token in prompt), None
    return prompt.token_ids, prompt.text


def _expected(
    model: CarvedModel,
    executor: Executor,
    first_prompt: tuple[int, ...],
    max_new_tokens: int,
    filters: Filters,
) -> dict[str, Program]:
    """A program of each entry that will run, for which room is kept under a budget."""
    expected: dict[str, Program] = {}
    if len(first_prompt) > 1 and filters.run(PREFILL, 0):
        expected[PREFILL] = executor.program(PREFILL, model.prepare_prefill(first_prompt))
    if any(filters.run(DECODE, step) for step in range(1, max_new_tokens)):
        expected[DECODE] = executor.program(DECODE, model.prepare_decode(first_prompt[0], 0))
    return expected
