"""Probes beside carved tests, for what carved numbers cannot tell.

In float16 and bfloat16 one lost term of a long sum may weigh less than honest rounding does; on
small whole numbers nothing is rounded and it shows (:mod:`tapml.compare.probes`); nor is a sum or
difference of two numbers of all digits (:mod:`tapml.compare.digit_probes`). Softmaxes, norms and
means are run on sums of a handful of terms (:mod:`tapml.compare.few_term_probes`), and so
are products that round behind their sums. In float32 the smallest wrong kernel is 27 times its
limit on carved numbers alone, so no such probe is made. An operator that takes exponentials is run
on large numbers as well, in every dtype (:mod:`tapml.compare.range_probes`): those of a few prompts
overflow nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from tapml.compare.digit_probes import digit_probe_of
from tapml.compare.expectation import Expectation
from tapml.compare.few_term_probes import (
    few_term_probes_of,
    has_few_term_probes,
    stand_in_probes_of,
)
from tapml.compare.formats import float_format
from tapml.compare.oracle import CarvedCase, Oracle
from tapml.compare.probes import ProbeCase, probes_of, why_no_probe
from tapml.compare.range_probes import range_probe_of, takes_exponentials
from tapml.compare.sensitivity import Twin
from tapml.graph.plan import Operator
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import CompileError

PROBING_VERSION: Final = 8
"""Part of every verdict's key: raise it when other probes are made."""
_NARROW_BITS: Final = 16


def is_probe(test: str) -> bool:
    """Whether the id of a test is that of a probe."""
    return "/probe" in test.rpartition("@")[2]


class Probing:
    """An oracle that knows probes as well, and makes them.

    Takes an :class:`~tapml.compare.oracle.Oracle`'s place in a replay.

    Parameters
    ----------
    oracle
        Judges carved tests; its twins check that a probe is exact.
    reference
        Gives the operators in their own dtypes on the trusted platform; called once, when the first
        operator needs a probe.
    """

    def __init__(self, oracle: Oracle, reference: Callable[[], Mapping[str, Twin]]) -> None:
        self._oracle = oracle
        self._make_reference = reference
        self._reference: Mapping[str, Twin] | None = None

    def tests(self, operator: Operator, carved: Iterable[CarvedCase]) -> Iterator[CarvedCase]:
        """The carved tests of an operator, the probes of the first of them behind it."""
        for index, test in enumerate(carved):
            yield test
            if index == 0:
                yield from self.probes(operator, test)

    def expect(self, test: CarvedCase) -> Expectation:
        """Float64 outputs and sensitivities, as the oracle has them; those of a probe are exact."""
        return test.expectation if isinstance(test, ProbeCase) else self._oracle.expect(test)

    def appeal(self, test: CarvedCase) -> Expectation:
        """The same, measured more closely."""
        return test.expectation if isinstance(test, ProbeCase) else self._oracle.appeal(test)

    def probes(self, operator: Operator, test: CarvedCase) -> tuple[ProbeCase, ...]:
        """The probes beside a carved test of an operator; none where it needs or has none."""
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
            # Its carved tests say so: without a twin they are not run.
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
