"""How much error is a pass, a degraded result or a failure.

Errors are counted in units of (sensitivity + ulp), see :mod:`tapml.compare.oracle`; a policy bounds
that ratio, by the dtype an output is computed in and by what the operator does to its numbers
(:mod:`tapml.compare.operator_class`). The defaults were calibrated on cases apart from any model
(docs/verdicts.md has the numbers); loosening one needs a reason, which reports show on their first
page.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

from tapml.compare.formats import float_format
from tapml.compare.limits import DEFAULT_LIMITS, RatioLimits, default_limits
from tapml.compare.operator_class import CLASSES, OperatorClass
from tapml_targets.errors import InputError

__all__ = ["DEFAULT_LIMITS", "ChosenLimits", "Override", "Policy", "RatioLimits"]

POLICY_VERSION: Final = 2


@dataclass(frozen=True)
class Override:
    """Other limits for some outputs.

    Attributes
    ----------
    pattern
        Shell wildcards that the operator's name must match.
    limits
        What holds there.
    reason
        Why; mandatory.
    dtype, operator_class
        The dtype computed in and the class must be these; empty for any.
    output
        Shell wildcards that the output's name must match.
    """

    pattern: str
    limits: RatioLimits
    reason: str
    dtype: str = ""
    operator_class: OperatorClass | None = None
    output: str = "*"

    def applies(self, operator: str, output: str, dtype: str, operator_class: str) -> bool:
        """Whether an output of an operator is judged by these limits."""
        return (
            fnmatch.fnmatchcase(operator, self.pattern)
            and fnmatch.fnmatchcase(output, self.output)
            and self.dtype in ("", dtype)
            and self.operator_class in (None, operator_class)
        )

    @property
    def loosens(self) -> bool:
        """Whether anything it may apply to has tighter limits by default."""
        return any(
            self.limits.is_looser_than(limits)
            for dtype, row in DEFAULT_LIMITS.items()
            for name, limits in row.items()
            if self.dtype in ("", dtype) and self.operator_class in (None, name)
        )

    def describe(self) -> str:
        """What it applies to."""
        narrowed = [
            self.dtype,
            self.operator_class or "",
            "" if self.output == "*" else self.output,
        ]
        rest = ", ".join(part for part in narrowed if part)
        return f"{self.pattern} ({rest})" if rest else self.pattern


@dataclass(frozen=True)
class ChosenLimits:
    """The limits of one output and where they come from.

    Attributes
    ----------
    base
        As they stand in the policy.
    dtype, operator_class
        The row of the policy.
    terms, growth
        Length of the operator's sums, and the factor on `base` for it.
    override
        Where they come from one.
    default
        Whether they are the calibrated defaults.
    """

    base: RatioLimits
    dtype: str
    operator_class: OperatorClass
    terms: int
    growth: float
    override: Override | None
    default: bool

    @property
    def limits(self) -> RatioLimits:
        """What the ratio is held against."""
        return replace(
            self.base,
            passing=self.base.passing * self.growth,
            degraded=self.base.degraded * self.growth,
        )


@dataclass(frozen=True)
class Policy:
    """Everything a verdict depends on beside the numbers.

    Attributes
    ----------
    limits
        (dtype, operator class, limits) that replace the defaults.
    overrides
        Limits of single operators; the first that applies wins over `limits`.
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

    limits: tuple[tuple[str, OperatorClass, RatioLimits], ...] = ()
    overrides: tuple[Override, ...] = ()
    reason: str = ""
    repeats: int = 3
    appeal_repeats: int = 16
    flushes_subnormals: tuple[str, ...] = ("float32", "float64", "bfloat16")
    seed: int = 20240
    version: int = POLICY_VERSION

    def __post_init__(self) -> None:
        for dtype, operator_class, limits in self.limits:
            _check_names(dtype, operator_class, "policy limits")
            limits.check(f"limits of {dtype} {operator_class}")
        for override in self.overrides:
            what = f"override of {override.pattern!r}"
            _check_names(override.dtype, override.operator_class, what)
            override.limits.check(what)
            if not override.reason.strip():
                raise InputError(f"{what} has no reason: say why in its `reason`")
        if self._loosened_rows and not self.reason.strip():
            raise InputError(
                f"limits of {', '.join(self._loosened_rows)} are looser than the calibrated "
                "defaults: say why in `reason`, it is printed on the first page of the report"
            )
        if not 1 <= self.repeats <= self.appeal_repeats:
            raise InputError(
                f"expected 1 <= repeats <= appeal_repeats, got {self.repeats} and "
                f"{self.appeal_repeats}"
            )
        for dtype in self.flushes_subnormals:
            float_format(dtype)

    @property
    def _loosened_rows(self) -> tuple[str, ...]:
        return tuple(
            f"{dtype} {operator_class}"
            for dtype, operator_class, limits in self.limits
            if limits.is_looser_than(default_limits(dtype, operator_class))
        )

    @property
    def loosened(self) -> tuple[str, ...]:
        """One line per loosening, for the first page of a report; empty for the defaults."""
        own = tuple(f"{row}: {self.reason}" for row in self._loosened_rows)
        return own + tuple(f"{o.describe()}: {o.reason}" for o in self.overrides if o.loosens)

    def limits_for(
        self,
        operator: str,
        dtype: str,
        terms: int,
        *,
        operator_class: OperatorClass = "unclassified",
        arithmetic: str = "",
        output: str = "",
    ) -> RatioLimits:
        """Limits of an output; see :meth:`choose`."""
        return self.choose(
            operator, dtype, terms,
            operator_class=operator_class, arithmetic=arithmetic, output=output,
        ).limits  # fmt: skip

    def choose(
        self,
        operator: str,
        dtype: str,
        terms: int,
        *,
        operator_class: OperatorClass = "unclassified",
        arithmetic: str = "",
        output: str = "",
    ) -> ChosenLimits:
        """Limits of an output and where they come from.

        Parameters
        ----------
        operator, output
            Names that overrides match.
        dtype, arithmetic
            The output's dtype, and the narrowest one on the way to it (empty: the same).
        terms
            Length of the operator's longest sum.
        operator_class
            What the operator does to its numbers.
        """
        if arithmetic and _bits(arithmetic) < _bits(dtype):
            # What was rounded to ten bits on the way has the errors of ten bits.
            dtype = arithmetic
        rows = {(name, kind): limits for name, kind, limits in self.limits}
        default = default_limits(dtype, operator_class)
        base = rows.get((dtype, operator_class), default)
        used = None
        for override in self.overrides:
            if override.applies(operator, output, dtype, operator_class):
                base, used = override.limits, override
                break
        growth = math.sqrt(max(1.0, terms / base.terms_without_growth))
        return ChosenLimits(
            base, dtype, operator_class, terms, growth, used, used is None and base is default
        )

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
                (str(dtype), kind, RatioLimits(**limits))
                for dtype, kind, limits in values["limits"]
            )
            values["overrides"] = tuple(
                Override(**{**o, "limits": RatioLimits(**o["limits"])}) for o in values["overrides"]
            )
            values["flushes_subnormals"] = tuple(values["flushes_subnormals"])
            return Policy(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"not a policy: {error!r}") from None

    @cached_property
    def hash(self) -> str:
        """SHA-256 over everything above in hexadecimal, for verdict keys."""
        content = json.dumps([asdict(self), list(_plain_defaults())], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def _plain_defaults() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for dtype, row in DEFAULT_LIMITS.items():
        for operator_class, limits in row.items():
            yield dtype, operator_class, asdict(limits)


def _check_names(dtype: str, operator_class: str | None, what: str) -> None:
    if dtype and dtype not in DEFAULT_LIMITS:
        raise InputError(
            f"{what} for unknown dtype {dtype!r}; known ones: {', '.join(DEFAULT_LIMITS)}"
        )
    if operator_class is not None and (
        operator_class not in CLASSES or operator_class == "discrete"
    ):
        known = ", ".join(name for name in CLASSES if name != "discrete")
        raise InputError(f"{what} for unknown class {operator_class!r}; known ones: {known}")


def _bits(dtype: str) -> int:
    return float_format(dtype).mantissa_bits
