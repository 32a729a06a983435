"""Exact probes: inputs on which every right kernel gives the same bits, in any dtype.

In half precision a term lost from a long sum weighs no more than honest rounding, so carved numbers
cannot show it. On small whole numbers nothing is rounded: where the sum of the *magnitudes* of all
terms still is a whole number that the narrowest dtype on the way holds, every partial sum in any
order is exact, and one lost term, one shifted index, one dropped guard shows at full size.

A probe is made beside a carved test, from its shapes, its integers (they stay in range) and its
symbols. It is verified, not assumed: the bound is computed by the operator's own float64 twin on
the magnitudes, and the reference must give float64's result bit for bit. There is none where no
input is exact: what divides, takes roots or exponentials rounds on every input worth probing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tapml.compare.expectation import Expectation, ExpectedOutput
from tapml.compare.formats import Float64s, as_float64, float_format
from tapml.compare.operator_class import OperatorClass, subtracts, traits_of
from tapml.compare.oracle import CarvedCase
from tapml.compare.probe_patterns import PERIODS, full, sparse
from tapml.compare.twin_runs import Twin, run_operator
from tapml.graph.plan import Operator
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError

Array = NDArray[Any]

_PROBED: Final[frozenset[OperatorClass]] = frozenset(
    {"elementwise", "reduction", "product", "scan", "rounded"}
)
_ADDING: Final[frozenset[OperatorClass]] = frozenset({"reduction", "product", "scan", "rounded"})
_SEED: Final = 4217
_PROBES: Final = 2
# Larger numbers tell more indices apart, smaller ones leave room for more terms.
_LARGEST: Final = {7: 2, 2: 1, 3: 1}
_LARGEST_OTHERWISE: Final = 3
_FINEST: Final = 12


@dataclass(frozen=True)
class ProbeTensor:
    """A tensor of a probe. It is no weight: weights are kept on the device from test to test."""

    key: str
    lifetime: str = "activation"


@dataclass(frozen=True)
class ProbeCase:
    """A synthetic test, in place of one from a suite, with what it must give.

    Attributes
    ----------
    id
        That of the carved test it was made beside, and ``/probe`` with a number.
    operator
        Name of the operator.
    symbols
        Integers passed beside the tensors.
    arrays, results
        Raw inputs and the reference's raw outputs, in parameter order.
    expectation
        The same outputs in float64. Their sensitivity is zero and their class ``exact``.
    """

    id: str
    operator: str
    symbols: Mapping[str, int]
    arrays: tuple[Array, ...] = field(repr=False)
    results: tuple[Array, ...] = field(repr=False)
    expectation: Expectation = field(repr=False)

    @property
    def key(self) -> str:
        """Identifies inputs and outputs by content."""
        digest = hashlib.sha256()
        for array in (*self.arrays, *self.results):
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def inputs(self) -> tuple[ProbeTensor, ...]:
        """The tensors read, in parameter order."""
        return tuple(ProbeTensor(f"{self.id}/{index}") for index in range(len(self.arrays)))

    def read_inputs(self) -> list[Array]:
        """Raw inputs, in parameter order."""
        return list(self.arrays)

    def read_outputs(self) -> list[Array]:
        """The reference's raw outputs, in parameter order."""
        return list(self.results)


class ProbeOracle:
    """Gives :func:`tapml.carving.replay.replay` the expectation that a probe brings along."""

    def expect(self, test: CarvedCase) -> Expectation:
        """What the probe must give.

        Raises
        ------
        InputError
            If `test` is no probe.
        """
        if not isinstance(test, ProbeCase):
            raise InputError(f"expected a probe, got the test {test.id}")
        return test.expectation

    def appeal(self, test: CarvedCase) -> Expectation:
        """The same: it is exact."""
        return self.expect(test)


def why_no_probe(operator: Operator) -> str:
    """Why an operator has no exact probe, empty where it may have."""
    floats = [parameter for parameter in operator.read if lookup(parameter.dtype).is_float]
    if not floats:
        return "it reads no floating-point numbers"
    if any(p.dtype.startswith("float8") for p in operator.parameters):
        return "whole numbers of a float8 are too few"
    for output in traits_of(operator):
        if output.operator_class == "exact":
            return "it computes nothing: its carved tests are exact"
        if output.operator_class not in _PROBED:
            return f"a {output.operator_class} output rounds on any numbers worth probing"
        if output.operator_class in _ADDING and subtracts(operator):
            return "it subtracts or divides on the way, which hides how large its partial sums are"
    return ""


def probes_of(
    operator: Operator, test: CarvedCase, twin: Twin, reference: Twin
) -> tuple[ProbeCase, ...]:
    """Up to two exact probes beside a carved test; none where :func:`why_no_probe` says why.

    Parameters
    ----------
    operator
        The operator of `test`.
    test
        Gives shapes, symbols, and the integers that the probes read as well.
    twin, reference
        The operator in float64 and in its own dtypes, called like
        :class:`tapml.compiler.reference.ReferenceFunction`.

    Raises
    ------
    InputError
        If the test does not fit the operator.
    """
    if why_no_probe(operator):
        return ()
    maker = _Maker(operator, test, twin, reference)
    probes = (maker.probe(number) for number in range(_PROBES))
    return tuple(probe for probe in probes if probe is not None)


class _Maker:
    """Makes the probes of one test."""

    def __init__(self, operator: Operator, test: CarvedCase, twin: Twin, reference: Twin) -> None:
        self._operator = operator
        self._test = test
        self._twin = twin
        self._reference = reference
        self._carved = test.read_inputs()
        self._results = test.read_outputs()
        self._traits = traits_of(operator)
        self._floats = [i for i, p in enumerate(operator.read) if lookup(p.dtype).is_float]
        dtypes = [p.dtype for p in operator.parameters if lookup(p.dtype).is_float]
        dtypes += [traits.arithmetic for traits in self._traits if traits.arithmetic]
        self._bits = min(float_format(dtype).mantissa_bits for dtype in dtypes)

    def probe(self, number: int) -> ProbeCase | None:
        """The probe of one number with the fewest zeros that is exact; None where none is."""
        for period in PERIODS:
            values = self._fill(period, number)
            wanted = self._run(self._twin, self._inputs(values, None))
            if self._fits(values, wanted):
                return self._verified(number, values, wanted)
        return None

    def _fill(self, period: int, number: int) -> list[Float64s]:
        """One array per floating-point input: one without zeros, another one in each probe.

        The smallest comes first: then the tensors of many elements, whose terms are many, are the
        sparse ones.
        """
        order = sorted(self._floats, key=lambda index: self._carved[index].size)
        whole = order[number % len(order)] if len(order) > 1 else None
        generator = np.random.Generator(np.random.SFC64(_SEED + number))
        largest = _LARGEST.get(self._bits, _LARGEST_OTHERWISE)
        return [
            full(self._carved[index].shape, largest, generator)
            if index == whole
            else sparse(self._carved[index].shape, largest, period, number, generator)
            for index in self._floats
        ]

    def _fits(self, values: Sequence[Float64s], wanted: Sequence[Array]) -> bool:
        """Whether all partial sums, in any order, are numbers that every dtype holds.

        On the magnitudes of `values` the twin gives the sum of the magnitudes of all terms, which
        no partial sum exceeds. Terms are multiples of a power of two (of one, but for constants).
        """
        majorants = self._run(self._twin, self._inputs([np.abs(array) for array in values], None))
        for want, majorant, parameter in zip(
            wanted, majorants, self._operator.written, strict=True
        ):
            if not lookup(parameter.dtype).is_float:
                continue
            grid = _grid(want)
            if grid is None or not (np.abs(majorant) <= grid * 2.0 ** (self._bits + 1)).all():
                return False
        return True

    def _verified(
        self, number: int, values: Sequence[Float64s], wanted: Sequence[Array]
    ) -> ProbeCase | None:
        """The probe, where the reference gives float64's result on it bit for bit."""
        arrays = self._inputs(values, to_raw)
        results = self._run(self._reference, arrays, like=self._results)
        outputs = []
        for parameter, kind, want, raw in zip(
            self._operator.written, self._operator.output_kinds, wanted, results, strict=True
        ):
            is_float = lookup(parameter.dtype).is_float
            if not np.array_equal(want, as_float64(raw, parameter.dtype) if is_float else raw):
                return None
            sensitivity = np.zeros(want.shape, np.float32)
            outputs.append(
                ExpectedOutput(
                    parameter.name,
                    parameter.dtype,
                    kind,
                    want,
                    sensitivity,
                    operator_class="exact",
                )
            )
        if not any(output.values.any() for output in outputs):
            # Zeros alone would not tell a kernel that writes nothing else.
            return None
        return ProbeCase(
            f"{self._test.id}/probe{number}",
            self._operator.name,
            dict(self._test.symbols),
            tuple(arrays),
            tuple(results),
            Expectation(tuple(outputs), 1, 0),
        )

    def _inputs(
        self, values: Sequence[Float64s], convert: Callable[[Float64s, str], Array] | None
    ) -> list[Array]:
        """All inputs in order: `values` for floats, what was carved for the rest."""
        remaining = iter(values)
        inputs = []
        for index, raw in enumerate(self._carved):
            if index not in self._floats:
                inputs.append(raw)
                continue
            value = next(remaining)
            inputs.append(
                value if convert is None else convert(value, self._operator.read[index].dtype)
            )
        return inputs

    def _run(
        self, function: Twin, inputs: Sequence[Array], like: Sequence[Array] | None = None
    ) -> list[Array]:
        outputs = [
            np.zeros(
                raw.shape,
                np.float64 if like is None and lookup(parameter.dtype).is_float else raw.dtype,
            )
            for parameter, raw in zip(self._operator.written, self._results, strict=True)
        ]
        return run_operator(self._operator, function, inputs, outputs, self._test.symbols)


def _grid(values: Float64s) -> float | None:
    """The largest power of two, up to one, that all of `values` are multiples of."""
    for exponent in range(_FINEST + 1):
        if np.array_equal(np.rint(np.ldexp(values, exponent)), np.ldexp(values, exponent)):
            return 2.0**-exponent
    return None


def to_raw(values: Float64s, dtype: str) -> Array:
    """Numbers that `dtype` holds, as its raw bits."""
    if dtype == "bfloat16":
        return values.astype(ml_dtypes.bfloat16).view(np.uint16)
    return values.astype(lookup(dtype).numpy_name)
