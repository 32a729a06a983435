"""Attributes a wrong kernel to its schedule, fusion, math, the driver or the code generator.

The operator is compiled in variants that differ in one respect each, and the failing test is
replayed with each; the kernel itself is replayed on a second driver. A variant that passes names
the cause (``docs/attribution.md`` has the table). Section IV-E of the TapML paper does this by
hand: a GELU that was NaN on one platform only was right once fast math was off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

import numpy as np

from tapml.compiler.unfused import is_fused, unfused
from tapml.diagnosis.conclusion import Evidence, Variant, conclude
from tapml.diagnosis.variants import CHECKER, Trial, Trials, check_kernel, gist
from tapml.failures.diagnosis import Attribution
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure import Failure
from tapml_rpc.client import Session
from tapml_targets.errors import TapmlError
from tapml_targets.library import Library

Compile: TypeAlias = Callable[[Operator, Mapping[str, str]], Library]
Second: TypeAlias = Callable[[], AbstractContextManager[Session]]

# Elements times terms for one thread: seconds with OpenCL on a CPU.
_MOST_ON_ONE_THREAD: Final = 1 << 27


def attribute(
    failure: Failure,
    session: Session,
    *,
    compile: Compile,
    second: Second | None = None,
    budget_seconds: float = 30.0,
) -> Attribution:
    """Find the cause of a failing test.

    Parameters
    ----------
    failure
        A test that did not pass, with its Library.
    session
        The device it failed on. Use a separate session, because a variant may kill the device.
    compile
        Compiles an operator, or one of a body, with target options; ``{}`` for the defaults.
    second
        Opens a session on another driver, e.g. from :func:`second_driver`; None without one.
    budget_seconds
        No variant starts after this time; the evidence names those left out.

    Returns
    -------
    Attribution
        ``unknown`` if the test does not fail again or the evidence is not conclusive.

    Raises
    ------
    DeviceLostError
        If `session`'s device is lost. Losing the second one is evidence.
    """
    return _Attribution(failure, session, compile, second, budget_seconds).find()


class _Attribution:
    """The variants, cheapest and most conclusive first."""

    def __init__(
        self,
        failure: Failure,
        session: Session,
        compile_with: Compile,
        second: Second | None,
        budget_seconds: float,
    ) -> None:
        self._failure = failure
        self._session = session
        self._compile = compile_with
        self._second = second
        self._trials = Trials(failure, budget_seconds)
        self._done: dict[Variant, Trial] = {}
        # Every variant keeps the failing kernel's own options.
        options = {option for module in failure.library.modules for option in module.options}
        self._own = {"fast_math": "1"} if "fast-math" in options else {}

    def find(self) -> Attribution:
        """Try variants until a rule holds."""
        evidence = Evidence(self._done, self._failure.result.verdict.suspect)
        rule = None
        for stage in (
            self._try_again,
            self._try_recompiled,
            self._try_math,
            self._try_driver,
            self._try_schedule,
            self._try_fusion,
        ):
            stage()
            rule = conclude(evidence)
            if rule is not None:
                break
        tried = tuple((trial.variant, trial.text) for trial in self._done.values())
        if rule is None:
            return Attribution("unknown", tried, "the evidence is not conclusive")
        return Attribution(rule.cause, tried, rule.sentence)

    def _try_again(self) -> None:
        again = self._done["again"] = self._trials.again(self._session)
        if again.right:
            self._check()

    def _try_recompiled(self) -> None:
        variant = "recompiled"
        try:
            library = self._compile(self._failure.operator, self._own | {"cache": "bypass"})
        except TapmlError as error:
            self._done["recompiled"] = Trial(variant, None, f"not replayed: {gist(error)}")
            return
        if self._is_the_failing(library):
            self._done["recompiled"] = Trial(variant, None, "the same kernel, byte for byte")
        else:
            self._done["recompiled"] = self._trials.run(variant, lambda: library, self._session)

    def _try_math(self) -> None:
        precise = self._compiled("with precise math", {"math": "precise"})
        self._done["precise"] = precise
        # Where a platform has no more precise math than its usual one, that alone is tried.
        if self._own and not precise.wrong:
            self._done["default math"] = self._compiled("without fast_math", {"fast_math": "0"})

    def _try_driver(self) -> None:
        plain = self._compiled("without the driver's optimiser", {"optimiser": "off"})
        self._done["unoptimised"] = plain
        elsewhere = self._done["second"] = self._elsewhere()
        if plain.right or elsewhere.right:
            self._check()

    def _check(self) -> None:
        """Whether an intermittently right kernel is itself at fault."""
        self._done["checked"] = self._trials.late(CHECKER) or check_kernel(self._failure)

    def _try_schedule(self) -> None:
        plain = self._plainly_scheduled()
        self._done["plain"] = plain
        if plain.right:
            return
        variant, points = "without a schedule, on one thread", self._points()
        if points > _MOST_ON_ONE_THREAD:
            text = f"not tried: {points} terms are too many for one thread"
            self._done["serial"] = Trial(variant, None, text)
        else:
            self._done["serial"] = self._compiled(variant, {"schedule": "one-thread"})

    def _try_fusion(self) -> None:
        """The body's steps one after another, each with its own schedule."""
        operator, variant = self._failure.operator, "without fusion, step after step"
        if not is_fused(operator):
            self._done["unfused"] = Trial(variant, None, "the operator is a single step")
            return

        def make() -> Library:
            return unfused(operator, lambda step: self._compile(step, self._own))

        self._done["unfused"] = self._trials.run(variant, make, self._session)

    def _is_the_failing(self, library: Library) -> bool:
        failing, name = self._failure.library, self._failure.operator.name
        return (library.modules, library.kernels, library.operators.get(name)) == (
            failing.modules,
            failing.kernels,
            failing.operators.get(name),
        )

    def _compiled(self, variant: str, options: Mapping[str, str]) -> Trial:
        return self._trials.run(
            variant,
            lambda: self._compile(self._failure.operator, {**self._own, **options}),
            self._session,
        )

    def _elsewhere(self) -> Trial:
        """The failing kernel on another driver."""
        variant = "on a second driver"
        if self._second is None:
            return Trial(variant, None, "this machine has none")
        try:
            with self._second() as other:
                variant = f"on {other.device.vendor_platform} ({other.device.name})"
                return self._trials.run(variant, lambda: self._failure.library, other)
        except TapmlError as error:
            # A second driver that dies of the kernel says nothing about the first.
            return Trial(variant, None, f"not replayed: {gist(error)}")

    def _plainly_scheduled(self) -> Trial:
        variant = "with the plainest schedule for a GPU"
        try:
            library = self._compile(self._failure.operator, {**self._own, "schedule": "fallback"})
        except TapmlError as error:
            return Trial(variant, None, f"not replayed: {gist(error)}")
        if self._is_the_failing(library):
            return Trial(variant, None, "the same kernel: it had that schedule")
        return self._trials.run(variant, lambda: library, self._session)

    def _points(self) -> int:
        expectation = self._failure.expectation
        elements = sum(int(np.size(output.values)) for output in expectation.outputs)
        return elements * max(1, expectation.terms)
