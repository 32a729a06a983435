"""Result of rooting: one record per comparison with PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tapml.plan.graph_plan import CallStep
from tapml_targets.errors import MismatchError, ProtocolError

Array = npt.NDArray[Any]

# Largest error of one operator and of a whole run, relative to the largest element. One operator
# sums a few thousand products; half precision rounds once where torch rounds after every step.
STEP_TOLERANCE: Final = {"float64": 1e-12, "float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}
RUN_TOLERANCE: Final = {"float64": 1e-10, "float32": 1e-3, "float16": 5e-2, "bfloat16": 4e-1}
_TINY: Final = 1e-30
# Scores from here down are masked: half of what a decoder's mask adds (tapml.models.inputs). Beside
# them every other score is small, so they have a scale of their own.
_MASKED: Final = {"float16": -1.5e4}
_MASKED_OF_OTHERS: Final = -5e8
_SHOWN: Final = 5


@dataclass(frozen=True)
class Rooted:
    """One comparison with torch.

    Attributes
    ----------
    kind
        ``operator`` or ``output`` (of a complete run, state included).
    site, operator
        The call that made the value; empty for an output that no call made.
    source
        Where the value is computed in the model's source.
    error
        Largest absolute difference.
    scale
        Largest magnitude in torch's value.
    ratio
        Error over tolerance; above 1 is a mismatch.
    """

    kind: Literal["operator", "output"]
    entry: str
    value: str
    site: str
    operator: str
    source: str
    error: float
    scale: float
    ratio: float

    def explained_up_to(self, moved: float) -> Rooted:
        """With a tolerance of `moved` if that is larger: what its operators' errors amount to."""
        finite = 0 < self.error < math.inf and 0 < self.ratio < math.inf
        if not finite or moved <= self.error / self.ratio:
            return self
        return replace(self, ratio=self.error / moved)


@dataclass(frozen=True)
class RootingReport:
    """All comparisons with torch, in order.

    `not_comparable` lists (call site, reason) of calls none of whose values exists in torch's
    program.
    """

    compared: tuple[Rooted, ...]
    not_comparable: tuple[tuple[str, str], ...] = ()

    @property
    def worst(self) -> Rooted | None:
        """The comparison that came closest to its bound."""
        return max(self.compared, key=lambda each: each.ratio, default=None)

    @property
    def operators(self) -> dict[str, float]:
        """Worst ratio by operator."""
        found: dict[str, float] = {}
        for each in self.compared:
            if each.kind == "operator":
                found[each.operator] = max(found.get(each.operator, 0.0), each.ratio)
        return found

    @property
    def sites(self) -> int:
        """Number of call sites that were compared."""
        return len({each.site for each in self.compared if each.kind == "operator"})

    def as_json(self) -> dict[str, Any]:
        """Plain data for reports."""
        return {
            "compared_values": len(self.compared),
            "compared_sites": self.sites,
            "not_comparable": [list(each) for each in self.not_comparable],
            "operators": self.operators,
            "outputs": [asdict(each) for each in self.compared if each.kind == "output"],
            "worst": None if self.worst is None else asdict(self.worst),
        }

    def pack(self) -> bytes:
        """The report as msgpack."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def unpack(data: bytes) -> RootingReport:
        """Read a packed report.

        Raises
        ------
        ProtocolError
            If the bytes are not a rooting report.
        """
        try:
            return msgspec.msgpack.decode(data, type=RootingReport)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not a rooting report: {error}") from None


def compare(
    kind: Literal["operator", "output"],
    entry: str,
    value: str,
    call: CallStep | None,
    actual: Array,
    expected: Array,
    data_type: str,
    *,
    rounded_to: str = "",
) -> Rooted:
    """Compare a value of an operator or a run with torch's value of the same shape and dtype.

    The tolerance is that of `rounded_to`, the coarsest dtype among the intermediates, or that of
    `data_type` if empty.
    """
    pair = (as_float(actual, data_type).ravel(), as_float(expected, data_type).ravel())
    if actual.size != expected.size:
        # An import that gives another shape is wrong in every element.
        pair = (np.array([np.nan]), np.zeros(1))
    masked = is_masked(pair[1], data_type)
    parts = [_difference(pair[0][of], pair[1][of]) for of in (~masked, masked)]
    error, scale = max(parts, key=lambda part: part[0] / max(part[1], _TINY))
    tolerances = STEP_TOLERANCE if kind == "operator" else RUN_TOLERANCE
    allowed = tolerances.get(rounded_to or data_type, 0.0) * max(scale, _TINY)
    # Integers and booleans have no tolerance: any difference is infinite.
    beyond = error / allowed if allowed else float("inf")
    origin = call.origins[-1] if call is not None and call.origins else None
    return Rooted(
        kind=kind,
        entry=entry,
        value=value,
        site=call.site if call is not None else "",
        operator=call.operator if call is not None else "",
        source=f"{origin.source} ({origin.operation})" if origin is not None else "",
        error=error,
        scale=scale,
        ratio=beyond if error else 0.0,
    )


def is_masked(scores: Array, data_type: str) -> npt.NDArray[np.bool_]:
    """Which numbers are scores that a mask of `data_type` hides, by elements."""
    found: npt.NDArray[np.bool_] = scores <= _MASKED.get(data_type, _MASKED_OF_OTHERS)
    return found


def as_float(array: Array, data_type: str) -> npt.NDArray[np.float64]:
    """Raw values as float64; bfloat16 is the upper half of a float32."""
    if data_type == "bfloat16":
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def _difference(
    actual: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Largest difference and magnitude of the finite elements; the others must be equal."""
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite]).max(initial=0.0))
    same = np.array_equal(actual[~finite], expected[~finite], equal_nan=True)
    if not same or not np.isfinite(actual[finite]).all():
        return float("inf"), scale
    return float(np.abs(actual[finite] - expected[finite]).max(initial=0.0)), scale


def check(compared: Sequence[Rooted]) -> None:
    """Raise if a comparison exceeds its tolerance.

    Raises
    ------
    MismatchError
        Naming the operators that differ, worst first, with the lines they come from.
    """
    wrong = sorted((each for each in compared if each.ratio > 1), key=lambda each: -each.ratio)
    # A wrong operator makes the run wrong, too; report the operator.
    shown = [each for each in wrong if each.kind == "operator"] or wrong
    if not shown:
        return
    lines = [
        f"  {each.operator or each.value} at {each.site or each.entry}, written at "
        f"{each.source or 'an unknown line'}: off by {each.error:.3g} where values reach "
        f"{each.scale:.3g}, {each.ratio:.3g} times the tolerance"
        for each in shown[:_SHOWN]
    ]
    more = f"\n  and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    raise MismatchError(
        f"the imported plan differs from the model's own run in {len(shown)} of "
        f"{len(compared)} comparisons:\n" + "\n".join(lines) + more
    )
