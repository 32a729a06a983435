"""The calibrated limits: how many (sensitivity + ulp) a right kernel may be off by.

``scripts/calibrate_verdicts.py`` measures what they rest on and, with ``--check``, whether they
still hold; docs/verdicts.md has the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tapml.compare.operator_class import OperatorClass
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
        Length of sums up to which both hold as they are. Beyond it they grow with the square root,
        as the rounding error of a correct sum does that adds its terms one by one.
    """

    passing: float
    degraded: float
    terms_without_growth: int = 256

    def check(self, what: str) -> None:
        """Refuse what bounds nothing; `what` is named in the message.

        Raises
        ------
        InputError
            If a limit is no positive finite number, or `passing` is above `degraded`.
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
        """Whether there is a ratio and a number of terms that these accept and `other` does not."""
        return (
            self.passing > other.passing
            or self.degraded > other.degraded
            or self.terms_without_growth < other.terms_without_growth
        )


# Half a unit already is another number, so nothing but the same value is below a quarter.
_EXACT: Final = RatioLimits(0.25, 0.25)

_SINGLE: Final[dict[OperatorClass, RatioLimits]] = {
    "exact": _EXACT,
    "elementwise": RatioLimits(10.0, 40.0),
    # 1 + tanh(x) loses its digits where x is small against them.
    "transcendental": RatioLimits(128.0, 512.0),
    "reduction": RatioLimits(20.0, 80.0),
    "product": RatioLimits(36.0, 144.0, 48),
    "normalisation": RatioLimits(16.0, 64.0),
    "softmax": RatioLimits(16.0, 64.0),
    "scan": RatioLimits(36.0, 144.0, 48),
    "rounded": RatioLimits(4.0, 16.0),
    "unclassified": RatioLimits(128.0, 512.0, 48),
}

# With ten bits or seven a lost term of a long sum weighs no more than honest rounding: in sums the
# range between right and wrong is narrow or empty. Exact probes (tapml.compare.probes) see those.
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
"""By dtype and operator class; a class that is not there has the limits of ``unclassified``."""


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
