"""Adds probes to carved tests, for errors that carved inputs cannot show.

In float16 and bfloat16 one lost term of a long sum may be smaller than correct rounding. Small
whole numbers, and sums and differences of two numbers of all digits, are not rounded, so it shows
(:mod:`tapml.oracles.probes`). Softmaxes, norms, means, and products that round behind their sums
are run on sums of a few terms (:mod:`tapml.oracles.few_term_probes`). In float32 the smallest wrong
kernel is 27 times its limit on carved inputs, so it gets no such probe. Operators with exponentials
are also run on large numbers, in every dtype (:mod:`tapml.oracles.range_probes`), because those of
a few prompts do not overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.few_term_probes import (
    few_term_probes_of,
    has_few_term_probes,
    stand_in_probes_of,
)
from tapml.oracles.oracle import Oracle
from tapml.oracles.probes import ProbeCase, digit_probe_of, probes_of, why_no_probe
from tapml.oracles.range_probes import range_probe_of, takes_exponentials
from tapml.oracles.twin_runs import Twin
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import Expectation
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import CompileError
from tapml_targets.float_formats import float_format

PROBING_VERSION: Final = 8
"""Part of every verdict's key; increment it when the probes change."""
_NARROW_BITS: Final = 16


def is_probe(test: str) -> bool:
    """Whether a test id is that of a probe."""
    return "/probe" in test.rpartition("@")[2]


class Probing:
    """An oracle that also makes probes and knows their expectations.

    Replaces an :class:`~tapml.oracles.oracle.Oracle` in a replay.

    Parameters
    ----------
    oracle
        Oracle of the carved tests; its twins verify that probes are exact.
    reference
        Compiles the operators in their own dtypes on the trusted platform; called for the first
        operator that needs a probe.
    """

    def __init__(self, oracle: Oracle, reference: Callable[[], Mapping[str, Twin]]) -> None:
        self._oracle = oracle
        self._make_reference = reference
        self._reference: Mapping[str, Twin] | None = None

    def tests(self, operator: Operator, carved: Iterable[CarvedCase]) -> Iterator[CarvedCase]:
        """The carved tests of an operator, with probes after the first one."""
        for index, test in enumerate(carved):
            yield test
            if index == 0:
                yield from self.probes(operator, test)

    def expect(self, test: CarvedCase) -> Expectation:
        """Float64 outputs and sensitivities from the oracle; those of a probe are exact."""
        return test.expectation if isinstance(test, ProbeCase) else self._oracle.expect(test)

    def appeal(self, test: CarvedCase) -> Expectation:
        """The same, measured with more perturbations."""
        return test.expectation if isinstance(test, ProbeCase) else self._oracle.appeal(test)

    def probes(self, operator: Operator, test: CarvedCase) -> tuple[ProbeCase, ...]:
        """The probes for a carved test; empty if the operator needs or has none."""
        exact = _is_narrow(operator) and not why_no_probe(operator)
        few = _is_narrow(operator) and has_few_term_probes(operator)
        ranged = takes_exponentials(operator)
        if not (exact or few or ranged):
            return ()
        if self._reference is None:
            self._reference = self._make_reference()
        try:
            twin, reference = self._oracle.twin(operator.name), self._reference[operator.name]
        except CompileError:
            # The carved tests report this: without a twin they are not run.
            return ()
        probes = probes_of(operator, test, twin, reference) if exact else ()
        if exact and not probes:
            probes = stand_in_probes_of(operator, test, twin, reference)
        if few:
            probes = few_term_probes_of(operator, test, twin, reference)
        digits = digit_probe_of(operator, test, twin, reference) if exact else None
        large = range_probe_of(operator, test, twin, reference) if ranged else None
        return (*probes, *(probe for probe in (digits, large) if probe is not None))


def _is_narrow(operator: Operator) -> bool:
    dtypes = [p.dtype for p in operator.parameters if lookup(p.dtype).is_float]
    return any(float_format(dtype).mantissa_bits < _NARROW_BITS for dtype in dtypes)
