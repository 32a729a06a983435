"""Probes with few terms, for sums in narrow dtypes that have no exact probe.

A softmax, a norm and a mean round every input, so none of their results is exact. If all but a few
terms of a sum are zero, however, a lost term changes the result by a tenth instead of a thousandth,
and rounding is worth a few units in the last place. The non-zero terms differ between rows. The
first row has the first and the last term, which a wrong bound leaves out.

A product of whole numbers is still rounded if a scale that is not a power of two is fused behind it
(attention scores with a head size of 12); it gets these instead of exact probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.probes import PERIODS, ProbeCase, sparse, to_raw, why_no_probe
from tapml.oracles.twin_runs import Twin, run_operator
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import Expectation, ExpectedOutput, worst_ratio
from tapml.verdicts.function_tree import FunctionTree
from tapml.verdicts.operator_class import OperatorClass, traits_of
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.expression import bind_shape, evaluate
from tapml_targets.float_formats import Float64s, float_format, ulp

Array = NDArray[Any]

_PROBED: Final[frozenset[OperatorClass]] = frozenset(
    {"softmax", "normalisation", "reduction", "rounded"}
)
_FEW: Final = 6
_SEED: Final = 7919
# Its exponential is zero in every dtype.
_MASKED: Final = -30000.0
# The reference must be close enough to float64 that a few more roundings still pass.
_NEAR: Final = 1.5


def has_few_term_probes(operator: Operator) -> bool:
    """Whether an operator's sums need these probes because exact ones cannot test them."""
    classes = {output.operator_class for output in traits_of(operator)}
    if not classes or not classes <= _PROBED or not why_no_probe(operator):
        return False
    return not any(p.dtype.startswith("float8") for p in operator.parameters) and _has_sums(
        operator
    )


def few_term_probes_of(
    operator: Operator, test: CarvedCase, twin: Twin, reference: Twin
) -> tuple[ProbeCase, ...]:
    """Up to two such probes for a carved test.

    Their errors count in units in the last place and are judged as numbers rounded once. There are
    none if the reference itself is further off than :data:`_NEAR`.

    Parameters
    ----------
    operator, test, twin, reference
        As for :func:`tapml.oracles.probes.probes_of`.
    """
    if not has_few_term_probes(operator):
        return ()
    return _probes(operator, test, twin, reference)


def stand_in_probes_of(
    operator: Operator, test: CarvedCase, twin: Twin, reference: Twin
) -> tuple[ProbeCase, ...]:
    """The same for a product that has no exact probes with the shapes of `test`.

    Parameters
    ----------
    operator, test, twin, reference
        As for :func:`tapml.oracles.probes.probes_of`.
    """
    if why_no_probe(operator) or not _is_product(operator):
        return ()
    return _probes(operator, test, twin, reference)


def _probes(
    operator: Operator, test: CarvedCase, twin: Twin, reference: Twin
) -> tuple[ProbeCase, ...]:
    length = _longest_sum(operator, test)
    if length is None or length < 2:
        return ()
    period = next((prime for prime in PERIODS if length <= _FEW * prime), PERIODS[-1])
    probes = (
        _probe(operator, test, twin, reference, number, period, offset)
        for number, offset in enumerate((0, 1 - length))
    )
    return tuple(probe for probe in probes if probe is not None)


def _probe(
    operator: Operator,
    test: CarvedCase,
    twin: Twin,
    reference: Twin,
    number: int,
    period: int,
    offset: int,
) -> ProbeCase | None:
    values = _values(operator, test.read_inputs(), number, period, offset)
    carved = test.read_outputs()
    empty = [
        np.zeros(raw.shape, np.float64 if lookup(parameter.dtype).is_float else raw.dtype)
        for parameter, raw in zip(operator.written, carved, strict=True)
    ]
    wanted = run_operator(operator, twin, values, empty, test.symbols)
    arrays = [
        to_raw(value, parameter.dtype) if lookup(parameter.dtype).is_float else value
        for parameter, value in zip(operator.read, values, strict=True)
    ]
    results = run_operator(
        operator, reference, arrays, [np.zeros_like(raw) for raw in carved], test.symbols
    )
    outputs = tuple(
        ExpectedOutput(
            parameter.name,
            parameter.dtype,
            kind,
            want,
            _lost_on_the_way(want, parameter.dtype, traits.arithmetic),
            operator_class="rounded",
        )
        for parameter, kind, want, traits in zip(
            operator.written, operator.output_kinds, wanted, traits_of(operator), strict=True
        )
    )
    for output, raw in zip(outputs, results, strict=True):
        finite = bool(np.isfinite(output.values).all()) and bool(output.values.any())
        if not finite or worst_ratio(output, raw) > _NEAR:
            return None
    return ProbeCase(
        f"{test.id}/probe-few{number}",
        operator.name,
        dict(test.symbols),
        tuple(arrays),
        tuple(results),
        Expectation(outputs, 1, 0),
    )


def _values(
    operator: Operator, carved: Sequence[Array], number: int, period: int, offset: int
) -> list[Array]:
    """Inputs with few significant values; the other scores are masked, the other numbers zero."""
    generator = np.random.Generator(np.random.SFC64(_SEED + number))
    masks = any(output.operator_class == "softmax" for output in traits_of(operator))
    floats = [i for i, p in enumerate(operator.read) if lookup(p.dtype).is_float]
    longest = max((carved[index].size for index in floats), default=0)
    # With two sparse factors hardly any term would be left.
    only = _is_product(operator)
    values: list[Array] = []
    for index, raw in enumerate(carved):
        if index not in floats:
            values.append(raw)
            continue
        # The first row starts, or ends, with a significant value.
        factor = 1 + (raw.ndim - 1) % max(1, period - 1)
        few = np.abs(sparse(raw.shape, 2, period, offset * factor, generator))
        if masks:
            values.append(np.where(few > 0, 0.0, _MASKED))
        elif raw.size == longest and not (only and any(_is_sparse(v) for v in values)):
            values.append(few)
        else:
            full: Float64s = generator.integers(1, 3, raw.shape).astype(np.float64)
            values.append(full)
    return values


def _is_sparse(values: Array) -> bool:
    return lookup(values.dtype.name).is_float and not values.all()


def _lost_on_the_way(want: Float64s | Array, dtype: str, arithmetic: str) -> NDArray[np.float32]:
    """One rounding in a dtype narrower than the output's, else zero."""
    if not arithmetic or not lookup(dtype).is_float:
        return np.zeros(want.shape, np.float32)
    if float_format(arithmetic).mantissa_bits >= float_format(dtype).mantissa_bits:
        return np.zeros(want.shape, np.float32)
    return ulp(want, arithmetic).astype(np.float32)


def _is_product(operator: Operator) -> bool:
    return any(output.operator_class == "product" for output in traits_of(operator))


def _has_sums(operator: Operator) -> bool:
    tree = FunctionTree.parse(operator.function)
    return tree is not None and any(store.accumulates for store in tree.stores)


def _longest_sum(operator: Operator, test: CarvedCase) -> int | None:
    """Length of the longest sum in any dtype; None if unknown."""
    tree = FunctionTree.parse(operator.function)
    if tree is None:
        return None
    symbols = dict(test.symbols)
    try:
        for parameter, raw in zip(operator.read, test.read_inputs(), strict=True):
            bind_shape(parameter.shape, raw.shape, symbols, parameter.name)
        extents = [tree.reduced_extent(store) for store in tree.stores if store.accumulates]
        return max(
            (evaluate(extent, symbols) for extent in extents if extent is not None), default=None
        )
    except InputError:
        return None
