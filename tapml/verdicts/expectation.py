"""The float64 value of an output, and how far correct arithmetic may be from it.

Plain data between the oracle, which makes it, and the judge, which reads it. It needs neither TVM
nor torch, so that a repro folder carries it to a device's machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.plan.graph_plan import OutputKind
from tapml.verdicts.index_source import IndexSource
from tapml.verdicts.operator_class import OperatorClass
from tapml_targets.dtype import dtype as lookup
from tapml_targets.float_formats import Float64s, as_float64, float_format, ulp


@dataclass(frozen=True)
class ExpectedOutput:
    """One written parameter of a test.

    Attributes
    ----------
    name, dtype, kind
        The parameter's name and dtype, and what its values mean.
    values
        float64 for floating-point outputs; the numpy dtype of the raw bits otherwise.
    sensitivity
        Per element, how far the float64 result moved when the inputs moved by one unit in their
        last place. For integers and booleans the largest change seen.
    source
        What an index points into, if known.
    reference_ratio
        Worst error of the reference's own output, in units of `scale`.
    operator_class, arithmetic
        What the operator does to this output's numbers, and the narrowest dtype it does it in:
        see :class:`tapml.verdicts.operator_class.OutputTraits`.
    """

    name: str
    dtype: str
    kind: OutputKind
    values: NDArray[Any]
    sensitivity: NDArray[np.float32]
    source: IndexSource | None = None
    reference_ratio: float = 0.0
    operator_class: OperatorClass = "unclassified"
    arithmetic: str = ""

    @property
    def source_place(self) -> list[Any] | None:
        """Location of `source`, without its values, which are the test's own inputs."""
        source = self.source
        return None if source is None else [source.axis, source.drops_axis, source.position]

    @property
    def is_float(self) -> bool:
        """Whether the output is floating point and therefore judged by ratio."""
        return lookup(self.dtype).is_float

    @cached_property
    def scale(self) -> Float64s:
        """Sensitivity plus one ulp of the output's dtype: the unit errors are counted in."""
        with np.errstate(all="ignore"):
            scale: Float64s = ulp(self.values, self.dtype)
            scale += self.sensitivity
        return scale


@dataclass(frozen=True)
class IndependentOutput:
    """One written parameter as torch computes it in float64.

    Attributes
    ----------
    twin_ratio
        Largest difference between torch and the float64 twin in units of the expectation's
        ``scale``; Inf where integers, NaN or Inf differ beyond what float64 leaves open.
    reference_ratio
        The same between torch and the reference's own output.
    bound
        The largest `twin_ratio` between two correct implementations.
    values
        torch's values if `twin_ratio` is above `bound`, else None.
    """

    twin_ratio: float
    reference_ratio: float
    bound: float
    values: NDArray[Any] | None = None

    @property
    def agrees(self) -> bool:
        """Whether torch and the float64 twin compute the same function here."""
        return self.twin_ratio <= self.bound


@dataclass(frozen=True)
class IndependentCheck:
    """The torch sub-graph of an operator in float64, beside the operator's float64 twin.

    Attributes
    ----------
    outputs
        One per written parameter; empty if the check could not be made.
    reason
        Why it could not be made; empty if it was.
    torch_missing
        Whether it can be made once torch is installed.
    """

    outputs: tuple[IndependentOutput, ...] = ()
    reason: str = ""
    torch_missing: bool = False

    @property
    def available(self) -> bool:
        """Whether the check was made."""
        return not self.reason

    @property
    def agrees(self) -> bool:
        """Whether the check was made and torch and the twin agree on every output."""
        return self.available and all(output.agrees for output in self.outputs)

    @property
    def twin_ratio(self) -> float:
        """Largest ratio between torch and the twin over the outputs."""
        return max((output.twin_ratio for output in self.outputs), default=0.0)

    @property
    def reference_ratio(self) -> float:
        """Largest ratio between torch and the reference over the outputs."""
        return max((output.reference_ratio for output in self.outputs), default=0.0)


@dataclass(frozen=True)
class Expectation:
    """What one carved test should give.

    Attributes
    ----------
    outputs
        One per written parameter, in order.
    terms
        Estimate of how many terms the operator adds up for one element: rounding errors of a
        correct sum grow with its square root.
    repeats
        How often the inputs were perturbed.
    independent
        Result of torch's own graph; None if another test of the operator with the same shapes was
        checked instead.
    """

    outputs: tuple[ExpectedOutput, ...]
    terms: int
    repeats: int
    independent: IndependentCheck | None = None


def float_errors(want: ExpectedOutput, got: Float64s) -> Float64s:
    """Error of each element in units of ``want.scale``, shape of the output.

    NaN and Inf match in place. Inf against finite counts how far float64 is from overflowing:
    within its rounding both are correct. Any other mismatch is Inf.
    """
    with np.errstate(all="ignore"):
        error: Float64s = np.asarray(np.subtract(got, want.values))
        np.abs(error, out=error)
        if not math.isfinite(float(error.sum())):
            _reconcile(error, want, got)
        error /= want.scale
    return error


def _reconcile(error: Float64s, want: ExpectedOutput, got: Float64s) -> None:
    """Replace the errors at NaN and Inf, in place."""
    expected = want.values
    largest = float_format(want.dtype).max_finite
    nan_expected, nan_actual = np.isnan(expected), np.isnan(got)
    infinite = np.isinf(got)
    same_sign = np.signbit(got) == np.signbit(expected)
    distance = np.maximum(0.0, largest - np.abs(expected))
    error[infinite] = np.where(same_sign, distance, np.inf)[infinite]
    # float64 overflows too: only the same Inf is correct.
    error[np.isinf(expected)] = np.inf
    error[infinite & (got == expected)] = 0.0
    error[nan_expected != nan_actual] = np.inf
    error[nan_expected & nan_actual] = 0.0


def worst_ratio(want: ExpectedOutput, raw: NDArray[Any]) -> float:
    """Largest error of a floating-point output's raw bits in units of ``want.scale``."""
    ratios = float_errors(want, as_float64(raw, want.dtype))
    return float(ratios.max(initial=0.0))
