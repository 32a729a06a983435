"""Digit probes: whole numbers that use every digit of a narrow dtype, and must come out exact.

On one platform of section II-B of the paper 1035 - 1031 is 5 in float16. No carved test can tell:
when 1035 moves by half a unit in its last place, so does the difference, and an error of one is
honest. But such a difference rounds nowhere. So an operator that adds, subtracts and multiplies
element by element is run on odd numbers that fill the dtype's digits as well, where the reference
gives float64's result bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.compare.expectation import Expectation, ExpectedOutput
from tapml.compare.formats import Float64s, as_float64, float_format
from tapml.compare.function_tree import FunctionTree
from tapml.compare.operator_class import traits_of
from tapml.compare.oracle import CarvedCase
from tapml.compare.probes import ProbeCase, to_raw
from tapml.compare.twin_runs import Twin, run_operator
from tapml.graph.plan import Operator
from tapml_targets.dtype import dtype as lookup

Array = NDArray[Any]

# What a device may round even where the result is a whole number.
_ROUNDING: Final = frozenset({"prim.Div", "prim.Mod", "prim.FloorDiv", "prim.FloorMod"})
_ROUNDING_CALLS: Final = frozenset({"sqrt", "rsqrt"})
_SEED: Final = 1035


def digit_probe_of(
    operator: Operator, test: CarvedCase, twin: Twin, reference: Twin
) -> ProbeCase | None:
    """A probe beside a carved test: its shapes, integers and symbols, and numbers of all digits.

    Parameters
    ----------
    operator
        The operator of `test`.
    test
        Gives shapes, symbols, and the integers that the probe reads as well.
    twin, reference
        The operator in float64 and in its own dtypes, called like
        :class:`tapml.compiler.reference.ReferenceFunction`.

    Returns
    -------
    ProbeCase or None
        None for operators that do more than add, subtract, multiply and choose, and where no such
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
        if _exact(operator, wanted, given):
            return ProbeCase(
                f"{test.id}/probe-digits",
                operator.name,
                dict(test.symbols),
                tuple(inputs),
                tuple(given),
                _expectation(operator, wanted),
            )
    return None


def _keeps_digits(operator: Operator) -> bool:
    """Whether an operator of a narrow dtype does nothing that rounds whole numbers by itself."""
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
    """Numbers for all floating-point inputs, the most telling first; None leaves an input alone.

    All full of digits: then sums of two need not be exact, and differences are. One of them full
    and ones for the others, which products and sums of two keep exact.
    """
    generator = np.random.Generator(np.random.SFC64(_SEED))
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


def _exact(operator: Operator, wanted: Sequence[Array], given: Sequence[Array]) -> bool:
    """Whether the reference gives float64's result bit for bit, and something else than zeros."""
    same = all(
        np.array_equal(want, as_float64(raw, p.dtype) if lookup(p.dtype).is_float else raw)
        for p, want, raw in zip(operator.written, wanted, given, strict=True)
    )
    return same and any(want.any() for want in wanted)


def _expectation(operator: Operator, wanted: Sequence[Array]) -> Expectation:
    return Expectation(
        tuple(
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
        ),
        1,
        0,
    )
