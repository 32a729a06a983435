"""The float64 oracles: expected outputs and sensitivities of carved tests, kept beside the suite.

Target-independent, so it is computed once per suite: in the background while kernels compile, and
read back afterwards. The twins themselves are compiled when the first test misses the cache. The
operator's torch sub-graph (:mod:`tapml.compare.independent`) runs for the first test of each call
shape, and for every test before a target is accused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from tapml.compare.expectation import Expectation
from tapml.compare.expectation_store import ExpectationStore, decode, encode
from tapml.compare.independent import NO_TORCH
from tapml.compare.independent_checks import IndependentChecks, digest
from tapml.compare.movements import Movements
from tapml.compare.policy import Policy
from tapml.compare.sensitivity import Case, ElementTrace, Twin, expect, trace_element
from tapml.graph.plan import Operator
from tapml_targets.errors import InputError
from tapml_targets.installed import compiler_versions

ORACLE_VERSION: Final = 9
"""Part of every key: raise it when an expectation's meaning changes."""


log = logging.getLogger(__name__)


class CarvedTensor(Protocol):
    """What the oracle needs of one tensor of a test."""

    @property
    def lifetime(self) -> str:
        """``weight``, ``state``, ``input`` or ``activation``."""

    @property
    def key(self) -> str:
        """Identifies the content."""


class CarvedCase(Protocol):
    """What oracle and replay need of a test, as :class:`tapml.carving.carved_test.CarvedTest`."""

    @property
    def id(self) -> str:
        """Identifies the test within its suite."""

    @property
    def operator(self) -> str:
        """Name of the operator."""

    @property
    def symbols(self) -> Mapping[str, int]:
        """Integers passed beside the tensors."""

    @property
    def key(self) -> str:
        """Identifies operator, inputs and outputs by content."""

    @property
    def inputs(self) -> Sequence[CarvedTensor]:
        """The tensors read, in parameter order."""

    def read_inputs(self) -> list[NDArray[Any]]:
        """Raw inputs, in parameter order."""

    def read_outputs(self) -> list[NDArray[Any]]:
        """The reference's raw outputs, in parameter order."""


def weight_keys(test: CarvedCase) -> list[str | None]:
    """Per tensor read the content key of the weight it is; None for all others."""
    return [tensor.key if tensor.lifetime == "weight" else None for tensor in test.inputs]


class Oracle:
    """Float64 expectations of carved tests.

    A context manager; one per suite and policy. Safe to use from several threads.

    Parameters
    ----------
    operators
        The plan's operators by name.
    compile_twins
        Called once, on the first test that is not in the cache, with the operators; returns their
        float64 twins by name (:func:`tapml.compiler.twin.compile_twins`).
    policy
        Says how often inputs are moved.
    cache
        File that keeps expectations; None keeps them in memory.
    """

    def __init__(
        self,
        operators: Mapping[str, Operator],
        compile_twins: Callable[[Iterable[Operator]], Mapping[str, Twin]],
        policy: Policy,
        *,
        cache: Path | None = None,
    ) -> None:
        self._operators = operators
        self._compile_twins = compile_twins
        self._policy = policy
        self._store = ExpectationStore(cache)
        self._movements = Movements(policy.seed)
        self._twins: Mapping[str, Twin] | None = None
        self._computing = threading.Lock()
        self._background: ThreadPoolExecutor | None = None
        self._pending: dict[str, Future[object]] = {}
        self._later: Callable[[], Iterable[CarvedCase]] | None = None
        self._checks = IndependentChecks(self._store, [ORACLE_VERSION, compiler_versions()])

    def __enter__(self) -> Oracle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop background work and close the cache."""
        if self._background is not None:
            self._background.shutdown(wait=True, cancel_futures=True)
        self._store.close()

    def warm_up(self) -> None:
        """Compile the twins in the background unless the cache already holds expectations."""
        if not self._store.empty():
            return
        self._submit(self._load_twins)

    def prefetch(self, tests: Iterable[CarvedCase]) -> None:
        """Compute the expectations of `tests` in the background, in this order.

        `tests` are read in another thread: take them from a Suite opened for this alone. An error
        does not surface here but when the test's expectation is asked for.
        """
        for test in tests:
            if test.id not in self._pending:
                self._pending[test.id] = self._submit(self._prepare, test)

    def prefetch_when_asked(self, tests: Callable[[], Iterable[CarvedCase]]) -> None:
        """The same as soon as an expectation is asked for that is not in the cache, and not before.

        For a suite whose expectations were computed in an earlier run: `tests` is called then.
        """
        self._later = tests

    def expect(self, test: CarvedCase) -> Expectation:
        """Float64 outputs and sensitivities of `test`, from the cache where they are there.

        Raises
        ------
        InputError
            If the plan has no such operator, or the test does not fit it.
        CompileError
            If the operator has no float64 twin.
        """
        later = self._later
        if later is not None and not self._store.has(self._key(test, self._policy.repeats)):
            self._later = None
            self.prefetch(each for each in later() if each.id != test.id)
        pending = self._pending.pop(test.id, None)
        if pending is not None and not pending.cancel():
            pending.result()
        return self._expect(test, self._policy.repeats)

    def appeal(self, test: CarvedCase) -> Expectation:
        """The same with many more movements: asked for before a target is accused."""
        return self._expect(test, self._policy.appeal_repeats)

    def trace(
        self, test: CarvedCase, expectation: Expectation, output: int, index: tuple[int, ...]
    ) -> ElementTrace:
        """What the sensitivity of one element of `expectation` is made of.

        Raises
        ------
        InputError
            If the plan has no such operator, or the test does not fit it.
        CompileError
            If the operator has no float64 twin.
        """
        operator = self._operator(test)
        twin = self._load_twins()[operator.name]
        case = Case(
            operator, test.read_inputs(), test.read_outputs(), test.symbols, weight_keys(test)
        )
        with self._computing:
            return trace_element(case, twin, self._movements, expectation.repeats, output, index)

    def twin(self, operator: str) -> Twin:
        """The float64 twin of an operator.

        Raises
        ------
        CompileError
            If it has none.
        """
        return self._load_twins()[operator]

    def _submit(self, work: Callable[..., object], *arguments: object) -> Future[object]:
        if self._background is None:
            self._background = ThreadPoolExecutor(1, thread_name_prefix="tapml-oracle")
        return self._background.submit(work, *arguments)

    def _load_twins(self) -> Mapping[str, Twin]:
        with self._computing:
            if self._twins is None:
                self._twins = self._compile_twins(self._operators.values())
            return self._twins

    def _prepare(self, test: CarvedCase) -> None:
        key = self._key(test, self._policy.repeats)
        if not self._store.has(key):
            self._compute(test, self._policy.repeats, key)

    def _expect(self, test: CarvedCase, repeats: int) -> Expectation:
        key = self._key(test, repeats)
        stored = self._store.read(key)
        must = repeats == self._policy.appeal_repeats
        if stored is not None:
            operator = self._operator(test)
            try:
                outputs = test.read_outputs()
                expectation = decode(stored, operator, test.read_inputs, outputs)
            except (ValueError, TypeError, IndexError) as error:
                log.warning("test %s: its cached expectation is damaged (%s)", test.id, error)
            else:
                checked = self._checks.add(test, operator, expectation, outputs, must=must)
                if checked is not expectation:
                    self._keep(key, checked, outputs)
                return checked
        return self._compute(test, repeats, key)

    def _compute(self, test: CarvedCase, repeats: int, key: str) -> Expectation:
        operator = self._operator(test)
        twin = self._load_twins()[operator.name]
        with self._computing:
            outputs = test.read_outputs()
            case = Case(operator, test.read_inputs(), outputs, test.symbols, weight_keys(test))
            expectation = expect(case, twin, self._movements, repeats)
        must = repeats == self._policy.appeal_repeats
        checked = self._checks.add(test, operator, expectation, outputs, must=must)
        self._keep(key, checked, outputs)
        return checked

    def _keep(self, key: str, expectation: Expectation, outputs: Sequence[NDArray[Any]]) -> None:
        check = expectation.independent
        if check is not None and check.reason == NO_TORCH:
            # Where torch is installed one day the check is made.
            expectation = replace(expectation, independent=None)
        self._store.write(key, encode(expectation, outputs))

    def _operator(self, test: CarvedCase) -> Operator:
        try:
            return self._operators[test.operator]
        except KeyError:
            raise InputError(
                f"test {test.id} is of operator {test.operator!r}, which the plan does not have: "
                "the suite was carved from another model; carve it again"
            ) from None

    def _key(self, test: CarvedCase, repeats: int) -> str:
        """Everything an expectation depends on."""
        content = [
            ORACLE_VERSION,
            # The twins are compiled, too.
            compiler_versions(),
            test.key,
            self._checks.form_key(self._operator(test), test),
            repeats,
            self._policy.seed,
        ]
        return digest(content)
