"""The calibrated limits: the error of a right kernel in units of (sensitivity + ulp).

``scripts/calibrate_verdicts.py`` measures them and, with ``--check``, verifies that they still
hold; docs/verdicts.md has the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tapml.verdicts.operator_class import OperatorClass
from tapml_targets.errors import InputError


@dataclass(frozen=True)
class RatioLimits:
    """Bounds on error / (sensitivity + ulp).

    Attributes
    ----------
    passing
        Above it a result is degraded.
    degraded
        Above it a result has failed.
    terms_without_growth
        Length of sums up to which both hold. Beyond it they grow with the square root, like the
        rounding error of a correct sequential sum.
    """

    passing: float
    degraded: float
    terms_without_growth: int = 256

    def check(self, what: str) -> None:
        """Validate the limits; `what` names them in the message.

        Raises
        ------
        InputError
            If a limit is not a positive finite number, or `passing` is above `degraded`.
        """
        if not (0 < self.passing <= self.degraded < math.inf):
            raise InputError(
                f"{what}: expected 0 < passing <= degraded and both finite, got "
                f"{self.passing} and {self.degraded}"
            )
        if self.terms_without_growth < 1:
            raise InputError(
                f"{what}: expected terms_without_growth from 1, got {self.terms_without_growth}"
            )

    def is_looser_than(self, other: RatioLimits) -> bool:
        """Whether these accept some ratio, at some number of terms, that `other` does not."""
        return (
            self.passing > other.passing
            or self.degraded > other.degraded
            or self.terms_without_growth < other.terms_without_growth
        )


# Half a unit is already another number, so only the same value is below a quarter.
_EXACT: Final = RatioLimits(0.25, 0.25)

_SINGLE: Final[dict[OperatorClass, RatioLimits]] = {
    "exact": _EXACT,
    "elementwise": RatioLimits(10.0, 40.0),
    # 1 + tanh(x) loses the digits of a small x.
    "transcendental": RatioLimits(128.0, 512.0),
    "reduction": RatioLimits(20.0, 80.0),
    "product": RatioLimits(36.0, 144.0, 48),
    "normalisation": RatioLimits(16.0, 64.0),
    "softmax": RatioLimits(16.0, 64.0),
    "scan": RatioLimits(36.0, 144.0, 48),
    "rounded": RatioLimits(4.0, 16.0),
    "unclassified": RatioLimits(128.0, 512.0, 48),
}

# With ten or seven bits, a lost term of a long sum is no larger than correct rounding, so the range
# between right and wrong is narrow or empty. Exact probes (tapml.oracles.probes) find those.
_HALF: Final[dict[OperatorClass, RatioLimits]] = {
    "exact": _EXACT,
    "elementwise": RatioLimits(12.0, 24.0),
    "transcendental": RatioLimits(32.0, 64.0),
    "reduction": RatioLimits(16.0, 24.0, 64),
    "product": RatioLimits(60.0, 90.0, 64),
    "normalisation": RatioLimits(12.0, 24.0, 64),
    "softmax": RatioLimits(12.0, 24.0),
    "scan": RatioLimits(72.0, 108.0, 64),
    "rounded": RatioLimits(4.0, 8.0),
    "unclassified": RatioLimits(72.0, 108.0, 64),
}

_BRAIN: Final[dict[OperatorClass, RatioLimits]] = {
    "exact": _EXACT,
    "elementwise": RatioLimits(6.0, 12.0),
    "transcendental": RatioLimits(12.0, 24.0),
    "reduction": RatioLimits(28.0, 42.0, 64),
    "product": RatioLimits(90.0, 135.0, 64),
    "normalisation": RatioLimits(12.0, 24.0, 64),
    "softmax": RatioLimits(12.0, 24.0),
    "scan": RatioLimits(90.0, 135.0, 64),
    "rounded": RatioLimits(4.0, 8.0),
    "unclassified": RatioLimits(90.0, 135.0, 64),
}

# Not calibrated: no device here computes in them.
_BYTE: Final[dict[OperatorClass, RatioLimits]] = {
    "exact": _EXACT,
    "rounded": RatioLimits(2.0, 4.0),
    "unclassified": RatioLimits(4.0, 8.0, 64),
}

DEFAULT_LIMITS: Final[dict[str, dict[OperatorClass, RatioLimits]]] = {
    "float64": _SINGLE,
    "float32": _SINGLE,
    "float16": _HALF,
    "bfloat16": _BRAIN,
    "float8_e4m3fn": _BYTE,
    "float8_e5m2": _BYTE,
}
"""By dtype and operator class; missing classes have the limits of ``unclassified``."""


def default_limits(dtype: str, operator_class: OperatorClass) -> RatioLimits:
    """The calibrated limits of a dtype and a class.

    Raises
    ------
    InputError
        If there are none for the dtype.
    """
    try:
        row = DEFAULT_LIMITS[dtype]
    except KeyError:
        known = ", ".join(DEFAULT_LIMITS)
        raise InputError(f"the policy has no limits for dtype {dtype!r}; known: {known}") from None
    return row.get(operator_class, row["unclassified"])
