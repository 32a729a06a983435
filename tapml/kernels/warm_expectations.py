"""Expectations cached between the trials of a watch, so that saves do not wait for an oracle.

Closer measurements, made before a kernel is blamed, may need TVM and torch, which take seconds to
load. A watch shows a verdict on the first measurement; the closer one is made in another process
and used once available.
"""

from __future__ import annotations

from typing import Final

from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.probing import Probing, is_probe
from tapml.verdicts.expectation import Expectation

KEPT_BYTES: Final = 256 << 20


class WarmExpectations:
    """Replaces an oracle in replays (:class:`tapml.replaying.replayer.Expecting`).

    Parameters
    ----------
    probing
        Source of expectations.
    patient
        Whether to wait for closer measurements, like a session.

    Attributes
    ----------
    hasty
        Names of tests judged without their closer measurement.
    """

    def __init__(self, probing: Probing, *, patient: bool) -> None:
        self.hasty: set[str] = set()
        self._probing = probing
        self._patient = patient
        self._first: dict[str, Expectation] = {}
        self._closer: dict[str, Expectation] = {}
        self._bytes = 0

    def expect(self, test: CarvedCase) -> Expectation:
        """See :meth:`tapml.oracles.oracle.Oracle.expect`."""
        kept = self._first.get(test.id)
        if kept is None:
            kept = self._probing.expect(test)
            self._keep(self._first, test, kept)
        return kept

    def appeal(self, test: CarvedCase) -> Expectation:
        """The closer measurement if available or waited for, else the first one."""
        kept = self._closer.get(test.id)
        if kept is not None:
            return kept
        if self._patient or is_probe(test.id):
            closer = self._probing.appeal(test)
            self._keep(self._closer, test, closer)
            return closer
        self.hasty.add(test.id)
        return self.expect(test)

    def put_closer(self, test: CarvedCase, closer: Expectation) -> None:
        """Store a closer measurement from another process."""
        self._keep(self._closer, test, closer)

    def _keep(self, where: dict[str, Expectation], test: CarvedCase, found: Expectation) -> None:
        nbytes = sum(each.values.nbytes + each.sensitivity.nbytes for each in found.outputs)
        if self._bytes + nbytes <= KEPT_BYTES:
            self._bytes += nbytes
            where[test.id] = found
