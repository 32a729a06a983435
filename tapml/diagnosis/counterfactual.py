"""Tests on the device whether an element becomes finite if certain input elements change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import numpy as np

from tapml.diagnosis.dependence import InputElement
from tapml.diagnosis.evaluation import Array, raw_bits
from tapml.diagnosis.failure_context import FailureContext, is_float
from tapml.diagnosis.inner_replay import InnerCase, InnerTensor
from tapml.oracles.carved_case import CarvedCase
from tapml.replaying.replayer import replay
from tapml.verdicts.expectation import Expectation
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.float_formats import as_float64

_MOST_REPLAYS: Final = 60
_MOST_CANDIDATES: Final = 1 << 18


class _Anything:
    """An oracle without expectations: the right result of the changed test is not needed."""

    def __init__(self, expectation: Expectation) -> None:
        self._expectation = expectation

    def expect(self, test: CarvedCase) -> Expectation:
        return self._expectation

    def appeal(self, test: CarvedCase) -> Expectation:
        return self._expectation


class Counterfactual:
    """Replays the failing Library on changed inputs and looks at one element of an output.

    Input elements are set to an ordinary number: the median of their tensor's finite non-zero
    values.
    """

    def __init__(self, context: FailureContext, output: str, flat: int) -> None:
        self._context = context
        self._flat = flat
        self._position = [o.name for o in context.outputs].index(output)
        self._replays = 0
        self._plain = {
            name: _ordinary(values)
            for name, values in context.values.items()
            if values.dtype == np.float64
        }

    def cured_by(self, elements: Sequence[InputElement]) -> bool | None:
        """Whether the element is finite with `elements` changed; None if unknown.

        Raises
        ------
        DeviceLostError
            If the device is lost.
        """
        if self._replays >= _MOST_REPLAYS or self._context.expired():
            return None
        if any(name not in self._plain for name, _ in elements):
            # Codes and indices have no ordinary number.
            return None
        self._replays += 1
        failure = self._context.failure
        operator, case = failure.operator, failure.result.case
        changed = {name: values.copy() for name, values in self._context.values.items()}
        for name, flat in elements:
            changed[name].reshape(-1)[flat] = self._plain[name]
        raw = tuple(
            raw_bits(changed[p.name], p.dtype)
            if is_float(p.dtype)
            else self._context.inputs[p.name]
            for p in operator.read
        )
        altered = InnerCase(
            id=f"{case.id}:changed",
            key=f"{case.key}:changed:{self._replays}",
            operator=operator.name,
            symbols=case.symbols,
            inputs=tuple(InnerTensor(f"{index}") for index in range(len(raw))),
            arrays=raw,
            results=tuple(case.read_outputs()),
        )
        oracle = _Anything(failure.expectation)
        try:
            result = replay(
                operator, altered, failure.library, self._context.session, oracle, failure.policy
            )
        except DeviceLostError:
            raise
        except TapmlError:
            return None
        if not result.actual:
            return True if result.verdict.status == "pass" else None
        parameter = operator.written[self._position]
        raw_value = result.actual[self._position].reshape(-1)[self._flat : self._flat + 1]
        return bool(np.isfinite(as_float64(raw_value, parameter.dtype)).all())

    def search(self, candidates: Iterable[InputElement]) -> InputElement | None:
        """Find the one element among `candidates` whose change cures, by bisection.

        None if no single one does, or if that takes too many replays.
        """
        usable = (element for element in candidates if element[0] in self._plain)
        kept = list(islice(usable, _MOST_CANDIDATES + 1))
        if not kept or len(kept) > _MOST_CANDIDATES or not self.cured_by(kept):
            return None
        while len(kept) > 1:
            middle = len(kept) // 2
            for half in (kept[:middle], kept[middle:]):
                if self.cured_by(half):
                    kept = half
                    break
            else:
                return None
        return kept[0]


def _ordinary(values: Array) -> float:
    usable = values[np.isfinite(values) & (values != 0)]
    return float(np.median(usable)) if usable.size else 1.0
