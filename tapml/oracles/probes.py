"""Exact probes: inputs for which every right kernel gives the same bits, in any dtype.

In half precision a term lost from a long sum is no larger than correct rounding, so carved inputs
cannot show it. Small whole numbers are not rounded: if the sum of the *magnitudes* of all terms
fits the narrowest dtype on the way, every partial sum in any order is exact, and a lost term, a
shifted index or a dropped guard shows at full size.

A probe is derived from a carved test: its shapes, its integers (which stay in range) and its
symbols. Exactness is verified: the operator's float64 twin computes the bound on the magnitudes,
and the reference must give float64's result bit for bit. Divisions, roots and exponentials have no
exact probe, because they round on every input worth probing.

A *digit probe* uses every digit of a narrow dtype. On one platform of section II-B of the paper
1035 - 1031 is 5 in float16. No carved test can show this: if 1035 is perturbed by half a unit in
the last place, so is the difference, and an error of one passes. But such a difference is exact. So
an operator that adds, subtracts and multiplies elementwise is also run on odd numbers that fill the
dtype's digits, if the reference gives float64's result bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.twin_runs import Twin, run_operator
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.function_tree import FunctionTree
from tapml.verdicts.operator_class import OperatorClass, subtracts, traits_of
from tapml_targets.dtype import dtype as lookup
from tapml_targets.float_formats import Float64s, as_float64, float_format

Array = NDArray[Any]

_PROBED: Final[frozenset[OperatorClass]] = frozenset(
    {"elementwise", "reduction", "product", "scan", "rounded"}
)
_ADDING: Final[frozenset[OperatorClass]] = frozenset({"reduction", "product", "scan", "rounded"})
_SEED: Final = 4217
_PROBES: Final = 2
# Larger numbers distinguish more indices; smaller ones leave room for more terms.
_LARGEST: Final = {7: 2, 2: 1, 3: 1}
_LARGEST_OTHERWISE: Final = 3
_FINEST: Final = 12


@dataclass(frozen=True)
class ProbeTensor:
    """A tensor of a probe. It is not a weight, because weights stay on the device between tests."""

    key: str
    lifetime: str = "activation"


@dataclass(frozen=True)
class ProbeCase:
    """A synthetic test with its expectation.

    Attributes
    ----------
    id
        That of the carved test it was derived from, with ``/probe`` and a number.
    operator
        Name of the operator.
    symbols
        Integers passed along with the tensors.
    arrays, results
        Raw inputs and the reference's raw outputs, in parameter order.
    expectation
        The same outputs in float64, with zero sensitivity and class ``exact``.
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


def why_no_probe(operator: Operator) -> str:
    """Why an operator has no exact probe; empty if it may have one."""
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
    """Up to two exact probes for a carved test; none if :func:`why_no_probe` gives a reason.

    Parameters
    ----------
    operator
        The operator of `test`.
    test
        Provides shapes, symbols and the integer inputs.
    twin, reference
        The operator in float64 and in its own dtypes, called like
        :class:`tapml.compiler.reference_module.ReferenceFunction`.

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
        """The exact probe with this number that has the fewest zeros; None if there is none."""
        for period in PERIODS:
            values = self._fill(period, number)
            wanted = self._run(self._twin, self._inputs(values, None))
            if self._fits(values, wanted):
                return self._verified(number, values, wanted)
        return None

    def _fill(self, period: int, number: int) -> list[Float64s]:
        """One array per floating-point input: one without zeros, which differs between probes.

        The smallest comes first, so that tensors with many elements, and many terms, are sparse.
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
        """Whether every dtype holds all partial sums, in any order.

        For the magnitudes of `values` the twin gives the sum of the magnitudes of all terms, which
        no partial sum exceeds. Terms are multiples of a power of two (of one, except for
        constants).
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
        arrays = self._inputs(values, to_raw)
        results = self._run(self._reference, arrays, like=self._results)
        return _exact_probe(self._operator, self._test, f"probe{number}", arrays, wanted, results)

    def _inputs(
        self, values: Sequence[Float64s], convert: Callable[[Float64s, str], Array] | None
    ) -> list[Array]:
        """All inputs in order: `values` for floats, the carved ones for the rest."""
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


def _exact_probe(
    operator: Operator,
    test: CarvedCase,
    name: str,
    inputs: Sequence[Array],
    wanted: Sequence[Array],
    results: Sequence[Array],
) -> ProbeCase | None:
    """The probe, if the reference gives float64's result bit for bit, and not only zeros.

    A result of zeros would not detect a kernel that writes only zeros.
    """
    for parameter, want, raw in zip(operator.written, wanted, results, strict=True):
        is_float = lookup(parameter.dtype).is_float
        if not np.array_equal(want, as_float64(raw, parameter.dtype) if is_float else raw):
            return None
    if not any(want.any() for want in wanted):
        return None
    outputs = tuple(
        ExpectedOutput(
            parameter.name,
            parameter.dtype,
            kind,
            want,
            np.zeros(want.shape, np.float32),
            operator_class="exact",
        )
        for parameter, kind, want in zip(
            operator.written, operator.output_kinds, wanted, strict=True
        )
    )
    return ProbeCase(
        f"{test.id}/{name}",
        operator.name,
        dict(test.symbols),
        tuple(inputs),
        tuple(results),
        Expectation(outputs, 1, 0),
    )


def _grid(values: Float64s) -> float | None:
    """The largest power of two, up to one, that divides all of `values`."""
    for exponent in range(_FINEST + 1):
        if np.array_equal(np.rint(np.ldexp(values, exponent)), np.ldexp(values, exponent)):
            return 2.0**-exponent
    return None


def to_raw(values: Float64s, dtype: str) -> Array:
    """Convert numbers that `dtype` holds to its raw bits."""
    if dtype == "bfloat16":
        # Replaying exported probes takes the base install alone.
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16).view(np.uint16)
    return values.astype(lookup(dtype).numpy_name)


# A *full* tensor has no zero. A *sparse* one is non-zero only where a weighted sum of its indices
# is a multiple of a prime: for every position along any axis there is a number within one period of
# any other axis. So every term is used by some element of a product, and each sum is short enough
# to be exact.
PERIODS: Final = (1, 2, 3, 5, 7, 11, 17, 31, 61, 127, 251, 509, 1021, 2039)
"""Primes (and one), in rough doublings: one number in this many is not zero."""


def full(shape: Sequence[int], largest: int, generator: np.random.Generator) -> Float64s:
    """Whole numbers from 1 to `largest` with random signs."""
    sizes = generator.integers(1, largest + 1, tuple(shape))
    signs = generator.integers(0, 2, tuple(shape)) * 2 - 1
    numbers: Float64s = (sizes * signs).astype(np.float64)
    return numbers


def sparse(
    shape: Sequence[int], largest: int, period: int, offset: int, generator: np.random.Generator
) -> Float64s:
    """The same, with one non-zero number per `period` along each axis, from `offset` on."""
    numbers = full(shape, largest, generator)
    place = np.full((1,) * len(shape), offset % period, np.int64)
    for axis, extent in enumerate(shape):
        # The prime must not divide the factor.
        factor = 1 + axis % max(1, period - 1)
        steps = np.arange(extent, dtype=np.int64) * factor
        place = place + steps.reshape([extent if i == axis else 1 for i in range(len(shape))])
    kept: Float64s = np.where(place % period == 0, numbers, 0.0)
    return kept


# A device may round these even if the result is a whole number.
_ROUNDING: Final = frozenset({"prim.Div", "prim.Mod", "prim.FloorDiv", "prim.FloorMod"})
_ROUNDING_CALLS: Final = frozenset({"sqrt", "rsqrt"})
_DIGITS_SEED: Final = 1035


def digit_probe_of(
    operator: Operator, test: CarvedCase, twin: Twin, reference: Twin
) -> ProbeCase | None:
    """Derive a digit probe from a carved test.

    Parameters
    ----------
    operator
        The operator of `test`.
    test
        Provides shapes, symbols and the integer inputs.
    twin, reference
        The operator in float64 and in its own dtypes, called like
        :class:`tapml.compiler.reference_module.ReferenceFunction`.

    Returns
    -------
    ProbeCase or None
        None for operators that do more than add, subtract, multiply and select, or if no such
        numbers stay exact on the way.
    """
    if not _keeps_digits(operator):
        return None
    carved, results = test.read_inputs(), test.read_outputs()
    for values in _fillings(operator, carved):
        inputs = [
            raw if value is None else to_raw(value, parameter.dtype)
            for parameter, raw, value in zip(operator.read, carved, values, strict=True)
        ]
        wide = [raw if value is None else value for raw, value in zip(carved, values, strict=True)]
        outputs = [
            np.zeros(raw.shape, np.float64 if lookup(p.dtype).is_float else raw.dtype)
            for p, raw in zip(operator.written, results, strict=True)
        ]
        wanted = run_operator(operator, twin, wide, outputs, test.symbols)
        given = run_operator(
            operator, reference, inputs, [np.zeros_like(raw) for raw in results], test.symbols
        )
        probe = _exact_probe(operator, test, "probe-digits", inputs, wanted, given)
        if probe is not None:
            return probe
    return None


def _keeps_digits(operator: Operator) -> bool:
    """Whether no operation of a narrow-dtype operator rounds whole numbers by itself."""
    floats = [p for p in operator.read if lookup(p.dtype).is_float]
    classes = {traits.operator_class for traits in traits_of(operator)}
    tree = FunctionTree.parse(operator.function)
    if not floats or tree is None or not classes <= {"elementwise", "exact", "discrete"}:
        return False
    if "elementwise" not in classes:
        return False
    return not any(
        tree.float_dtypes(store.value, _ROUNDING) or tree.calls(store.value) & _ROUNDING_CALLS
        for store in tree.stores
    )


def _fillings(operator: Operator, carved: Sequence[Array]) -> Iterator[list[Float64s | None]]:
    """Numbers for all floating-point inputs, the most sensitive first; None keeps the carved input.

    First all full of digits, whose differences are exact and whose sums need not be. Then one full
    and the others one, which keeps products and sums of two exact.
    """
    generator = np.random.Generator(np.random.SFC64(_DIGITS_SEED))
    floats = [index for index, p in enumerate(operator.read) if lookup(p.dtype).is_float]

    def digits(index: int) -> Float64s:
        bits = float_format(operator.read[index].dtype).mantissa_bits
        halves = generator.integers(2 ** (bits - 1), 2**bits, carved[index].shape)
        odd: Float64s = (2 * halves + 1).astype(np.float64)
        return odd

    for full in (floats, *([index] for index in floats)):
        yield [
            None
            if index not in floats
            else digits(index)
            if index in full
            else np.ones(raw.shape, np.float64)
            for index, raw in enumerate(carved)
        ]
