"""The float64 oracles: expected outputs and sensitivities of carved tests, stored with the suite.

They are independent of the target, so they are computed once per suite, in the background while
kernels compile, and read back afterwards. The twins are compiled on the first cache miss. The
operator's torch sub-graph (:mod:`tapml.oracles.torch_oracle`) runs for the first test of each call
shape, and for every test before a target is blamed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from tapml.oracles.carved_case import CarvedCase, weight_keys
from tapml.oracles.expectation_store import ExpectationStore, decode, encode
from tapml.oracles.sensitivity import ElementTrace, expect, trace_element
from tapml.oracles.torch_oracle import IndependentChecks, digest
from tapml.oracles.twin_runs import Case, Perturbations, Twin
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import Expectation
from tapml.verdicts.policy import Policy
from tapml_targets.errors import InputError
from tapml_targets.installed import compiler_versions

ORACLE_VERSION: Final = 11
"""Part of every key; increment it when the meaning of expectations changes."""


log = logging.getLogger(__name__)


class Oracle:
    """Float64 expectations of carved tests.

    A context manager, one per suite and policy. Thread-safe.

    Parameters
    ----------
    operators
        The plan's operators by name.
    compile_twins
        Called once, on the first cache miss, with the operators; returns their float64 twins by
        name (:func:`tapml.compiler.twin.compile_twins`).
    policy
        Defines how often inputs are perturbed.
    cache
        File for the expectations; None keeps them in memory.
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
        self._perturbations = Perturbations(policy.seed)
        self._twins: Mapping[str, Twin] | None = None
        self._computing = threading.Lock()
        self._background: ThreadPoolExecutor | None = None
        self._pending: dict[str, Future[object]] = {}
        self._later: Callable[[], Iterable[CarvedCase]] | None = None
        self._checks = IndependentChecks(self._store, [ORACLE_VERSION, compiler_versions()])

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: object) -> None:
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

        `tests` are read in another thread: take them from a Suite opened only for this. Errors
        surface when the test's expectation is requested.
        """
        for test in tests:
            if test.id not in self._pending:
                self._pending[test.id] = self._submit(self._prepare, test)

    def prefetch_when_asked(self, tests: Callable[[], Iterable[CarvedCase]]) -> None:
        """The same, starting with the first expectation that is not in the cache.

        For a suite whose expectations an earlier run computed; `tests` is called then.
        """
        self._later = tests

    def expect(self, test: CarvedCase) -> Expectation:
        """Float64 outputs and sensitivities of `test`, from the cache if possible.

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
        """The same with many more perturbations, for use before a target is blamed."""
        return self._expect(test, self._policy.appeal_repeats)

    def trace(
        self, test: CarvedCase, expectation: Expectation, output: int, index: tuple[int, ...]
    ) -> ElementTrace:
        """Trace the sensitivity of one element of `expectation`.

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
            return trace_element(
                case, twin, self._perturbations, expectation.repeats, output, index
            )

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
            expectation = expect(case, twin, self._perturbations, repeats)
        must = repeats == self._policy.appeal_repeats
        checked = self._checks.add(test, operator, expectation, outputs, must=must)
        self._keep(key, checked, outputs)
        return checked

    def _keep(self, key: str, expectation: Expectation, outputs: Sequence[NDArray[Any]]) -> None:
        check = expectation.independent
        if check is not None and check.torch_missing:
            # The check runs once torch is installed.
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
            # The twins are compiled code as well.
            compiler_versions(),
            test.key,
            self._checks.form_key(self._operator(test), test),
            repeats,
            self._policy.seed,
        ]
        return digest(content)
