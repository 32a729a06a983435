"""Expectations kept between the looks of a watch: a save must not wait for an oracle twice.

Closer measurements, asked for before a kernel is accused, may need TVM and torch, which take
seconds to load. Whoever watches gets a verdict on the first measurement; the closer one is made
meanwhile in another process and used as soon as it is there.
"""

from __future__ import annotations

from typing import Final

from tapml.carving.probing import Probing, is_probe
from tapml.compare.expectation import Expectation
from tapml.compare.oracle import CarvedCase

KEPT_BYTES: Final = 256 << 20


class WarmExpectations:
    """Takes an oracle's place in replays (:class:`tapml.carving.replay.Expecting`).

    Parameters
    ----------
    probing
        Where expectations come from.
    patient
        Whether a closer measurement is waited for, as a session does.

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
        """See :meth:`tapml.compare.oracle.Oracle.expect`."""
        kept = self._first.get(test.id)
        if kept is None:
            kept = self._probing.expect(test)
            self._keep(self._first, test, kept)
        return kept

    def appeal(self, test: CarvedCase) -> Expectation:
        """The closer measurement where it is there or waited for; else the first one again."""
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
        """Keep a closer measurement that was made elsewhere."""
        self._keep(self._closer, test, closer)

    def _keep(self, where: dict[str, Expectation], test: CarvedCase, found: Expectation) -> None:
        nbytes = sum(each.values.nbytes + each.sensitivity.nbytes for each in found.outputs)
        if self._bytes + nbytes <= KEPT_BYTES:
            self._bytes += nbytes
            where[test.id] = found
