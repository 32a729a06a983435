"""How much error is a pass, a degraded result or a failure.

Errors are counted in units of (sensitivity + ulp), see :mod:`tapml.compare.oracle`; a policy bounds
that ratio. The defaults were calibrated on cases apart from any model (docs/verdicts.md has
the numbers); loosening one needs a reason, which reports show on their first page.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

from tapml_targets.errors import InputError

POLICY_VERSION: Final = 1


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


@dataclass(frozen=True)
class Override:
    """Other limits for the operators whose name matches `pattern` (shell wildcards)."""

    pattern: str
    limits: RatioLimits
    reason: str


DEFAULT_LIMITS: Final = {
    "float64": RatioLimits(32.0, 128.0),
    "float32": RatioLimits(32.0, 128.0),
    # With ten bits or seven a lost term of a long sum weighs no more than honest rounding: the
    # range between right and wrong is narrow, and so is the one that is called degraded.
    "float16": RatioLimits(16.0, 24.0, 64),
    "bfloat16": RatioLimits(24.0, 32.0, 64),
    # Not calibrated: no device here computes in them.
    "float8_e4m3fn": RatioLimits(4.0, 8.0, 64),
    "float8_e5m2": RatioLimits(4.0, 8.0, 64),
}


@dataclass(frozen=True)
class Policy:
    """Everything a verdict depends on beside the numbers.

    Attributes
    ----------
    limits
        (dtype, limits) pairs that replace the defaults.
    overrides
        Limits per operator; the first match wins over `limits`.
    reason
        Why `limits` are looser than the defaults; mandatory where they are.
    repeats
        How often inputs are moved to find the sensitivity.
    appeal_repeats
        How often before anything but a pass is pronounced.
    flushes_subnormals
        Dtypes whose subnormals may be lost: an error below the smallest normal number passes and is
        counted. float16's subnormals reach 6e-5, which models use, so it is not among them.
    seed
        Of the movements.
    version
        Of the meaning of all this.

    Raises
    ------
    InputError
        If a limit is not a positive number, or is loosened without a reason.
    """

    limits: tuple[tuple[str, RatioLimits], ...] = ()
    overrides: tuple[Override, ...] = ()
    reason: str = ""
    repeats: int = 3
    appeal_repeats: int = 16
    flushes_subnormals: tuple[str, ...] = ("float32", "float64", "bfloat16")
    seed: int = 20240
    version: int = POLICY_VERSION

    def __post_init__(self) -> None:
        for dtype, limits in self.limits:
            if dtype not in DEFAULT_LIMITS:
                known = ", ".join(DEFAULT_LIMITS)
                raise InputError(f"policy limits for unknown dtype {dtype!r}; known ones: {known}")
            _check_limits(limits, f"limits of {dtype}")
        for override in self.overrides:
            _check_limits(override.limits, f"override of {override.pattern!r}")
            if not override.reason.strip():
                raise InputError(
                    f"override of {override.pattern!r} has no reason: say why in its `reason`"
                )
        if self._loosened_dtypes and not self.reason.strip():
            raise InputError(
                f"limits of {', '.join(self._loosened_dtypes)} are looser than the calibrated "
                "defaults: say why in `reason`, it is printed on the first page of the report"
            )
        if not 1 <= self.repeats <= self.appeal_repeats:
            raise InputError(
                f"expected 1 <= repeats <= appeal_repeats, got {self.repeats} and "
                f"{self.appeal_repeats}"
            )

    @property
    def _loosened_dtypes(self) -> tuple[str, ...]:
        return tuple(
            dtype
            for dtype, limits in self.limits
            if limits.passing > DEFAULT_LIMITS[dtype].passing
            or limits.degraded > DEFAULT_LIMITS[dtype].degraded
            or limits.terms_without_growth < DEFAULT_LIMITS[dtype].terms_without_growth
        )

    @property
    def loosened(self) -> tuple[str, ...]:
        """One line per loosening, for the first page of a report; empty for the defaults."""
        own = tuple(f"{dtype}: {self.reason}" for dtype in self._loosened_dtypes)
        return own + tuple(f"{o.pattern}: {o.reason}" for o in self.overrides)

    def limits_for(self, operator: str, dtype: str, terms: int) -> RatioLimits:
        """Limits for an output of `dtype` whose elements are sums of about `terms` terms."""
        limits = dict(self.limits).get(dtype, DEFAULT_LIMITS.get(dtype))
        for override in self.overrides:
            if fnmatch.fnmatchcase(operator, override.pattern):
                limits = override.limits
                break
        if limits is None:
            raise InputError(f"the policy has no limits for dtype {dtype!r}")
        growth = math.sqrt(max(1.0, terms / limits.terms_without_growth))
        return replace(limits, passing=limits.passing * growth, degraded=limits.degraded * growth)

    def to_json(self) -> dict[str, Any]:
        """Plain data that :meth:`from_json` reads back."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Policy:
        """The policy that `data` holds.

        Raises
        ------
        InputError
            If `data` is no policy, or one this version does not know.
        """
        try:
            values = dict(data)
            if values["version"] != POLICY_VERSION:
                raise InputError(
                    f"policy version {values['version']!r}: this tapml knows {POLICY_VERSION}"
                )
            values["limits"] = tuple(
                (str(name), RatioLimits(**limits)) for name, limits in values["limits"]
            )
            values["overrides"] = tuple(
                Override(o["pattern"], RatioLimits(**o["limits"]), o["reason"])
                for o in values["overrides"]
            )
            values["flushes_subnormals"] = tuple(values["flushes_subnormals"])
            return Policy(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not a policy: {error!r}") from None

    @cached_property
    def hash(self) -> str:
        """SHA-256 over everything above in hexadecimal, for verdict keys."""
        content = json.dumps([asdict(self), _plain_defaults()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def _plain_defaults() -> dict[str, Any]:
    return {name: asdict(limits) for name, limits in DEFAULT_LIMITS.items()}


def _check_limits(limits: RatioLimits, what: str) -> None:
    if not (0 < limits.passing <= limits.degraded < math.inf):
        raise InputError(
            f"{what}: expected 0 < passing <= degraded and both finite, got "
            f"{limits.passing} and {limits.degraded}"
        )
    if limits.terms_without_growth < 1:
        raise InputError(
            f"{what}: expected terms_without_growth from 1, got {limits.terms_without_growth}"
        )
