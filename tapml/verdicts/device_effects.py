"""Explains an output's numbers by the facts of the device's self-test.

The judge reads none of this: a verdict does not depend on the self-test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from tapml.verdicts.expectation import ExpectedOutput
from tapml_targets.float_formats import float_format
from tapml_targets.self_test.facts import SelfTest

_SHOWN: Final = 3
# Classes in which a product is, or may be, added to something.
_ADDS_PRODUCTS: Final = frozenset(
    ("elementwise", "transcendental", "product", "normalisation", "softmax", "scan", "unclassified")
)
_DIVIDES: Final = frozenset(("elementwise", "transcendental", "normalisation", "softmax"))


class _Output(NamedTuple):
    name: str
    dtype: str
    operator_class: str
    ratio: float
    passing: float
    nan_mismatches: int
    flushed: int


def effects(
    self_test: SelfTest, numbers: Mapping[str, Any], operator_class: str = "unclassified"
) -> list[str]:
    """Lines that connect a device's facts with one output's numbers.

    Parameters
    ----------
    self_test
        Of the device that computed the output.
    numbers
        The output's :class:`~tapml.verdicts.verdict.OutputNumbers` as its ``to_json`` gives them.
    operator_class
        Class of the operator, if known.

    Returns
    -------
    list of str
        Empty if the facts explain nothing.
    """
    ratio = numbers.get("ratio")
    output = _Output(
        str(numbers.get("name", "")),
        # The arithmetic of bfloat16 is float32's.
        {"bfloat16": "float32"}.get(str(numbers.get("dtype")), str(numbers.get("dtype"))),
        operator_class,
        # Strict JSON has no Inf.
        float(ratio) if isinstance(ratio, int | float) else float("inf"),
        float(numbers.get("passing") or 0),
        int(numbers.get("nan_mismatches") or 0),
        int(numbers.get("flushed") or 0),
    )
    return list(_effects(self_test, output))


def denormals_expected(self_test: SelfTest, want: ExpectedOutput) -> list[str]:
    """Name the denormal elements of an expected output if the device flushes denormals."""
    if not want.is_float or not _flushes(self_test, want.dtype):
        return []
    with np.errstate(all="ignore"):
        size = np.abs(want.values)
        denormal = np.argwhere((size > 0) & (size < float_format(want.dtype).smallest_normal))
    if not len(denormal):
        return []
    places = ", ".join(f"[{', '.join(map(str, index))}]" for index in denormal[:_SHOWN])
    more = f" and {len(denormal) - _SHOWN} more" if len(denormal) > _SHOWN else ""
    these = "this element is" if len(denormal) == 1 else f"these {len(denormal)} elements are"
    return [
        f"the device flushes denormals: {these} denormal in the expected output: {places}{more}"
    ]


def _effects(self_test: SelfTest, output: _Output) -> Iterator[str]:
    dtype = output.dtype
    if output.flushed and _flushes(self_test, dtype):
        yield (
            f"the device flushes {dtype} denormals: {output.flushed} errors are of the size that "
            "this makes"
        )
    elif output.flushed and self_test.fact(f"{dtype}_denormal_results") is not None:
        yield (
            f"{output.flushed} errors are below the smallest normal number, yet the device keeps "
            f"{dtype} denormals: the kernel computes them so"
        )
    if output.nan_mismatches and self_test.is_unsound(f"{dtype}_nan"):
        yield f"the device's {dtype} NaN is {_value(self_test, f'{dtype}_nan')}"
    contracts = _value(self_test, f"{dtype}_multiply_add") == "fused"
    if contracts and output.operator_class in _ADDS_PRODUCTS and 0 < output.ratio < float("inf"):
        within = output.ratio <= max(output.passing, 1.0)
        yield (
            f"the device contracts {dtype} multiply-add, which rounds once in place of twice: "
            + (
                "an ulp of the product or so may come of it"
                if within
                else "no more than an ulp of the product comes of it, and this error is larger"
            )
        )
    if output.operator_class in _DIVIDES:
        for name in ("divide", "square_root"):
            fact = self_test.fact(f"{dtype}_{name}_error")
            if fact is not None and fact.sound is not True and isinstance(fact.value, int | float):
                yield f"the device's {dtype} {name.replace('_', ' ')} is off by {fact.value:g} ulp"
    if output.operator_class in ("transcendental", "unclassified"):
        fact = self_test.fact(f"{dtype}_tanh_of_45")
        if fact is not None and fact.sound is False:
            yield fact.meaning
    for fact in self_test.grave:
        if fact.name not in (f"{dtype}_tanh_of_45", f"{dtype}_nan"):
            yield f"the device is not sound: {fact.meaning}"


def _flushes(self_test: SelfTest, dtype: str) -> bool:
    kind = {"bfloat16": "float32"}.get(dtype, dtype)
    return any(
        self_test.is_unsound(f"{kind}_denormal_{what}") for what in ("inputs", "results", "copies")
    )


def _value(self_test: SelfTest, name: str) -> int | float | str | None:
    fact = self_test.fact(name)
    return None if fact is None else fact.value
