"""How much error is a pass, a degraded result or a failure.

Errors are counted in units of (sensitivity + ulp), see :mod:`tapml.oracles.oracle`; a policy bounds
that ratio, by the dtype an output is computed in and by what the operator does to its numbers
(:mod:`tapml.verdicts.operator_class`). The defaults were calibrated on cases from no model
(docs/verdicts.md has the numbers). Loosening one needs a reason, which reports show on their first
page.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final

from tapml.plan.graph_plan import Operator
from tapml.verdicts.limits import DEFAULT_LIMITS, RatioLimits, default_limits
from tapml.verdicts.operator_class import CLASSES, OperatorClass, traits_of
from tapml_targets.errors import InputError
from tapml_targets.float_formats import float_format

POLICY_VERSION: Final = 2


@dataclass(frozen=True)
class Override:
    """Other limits for some outputs.

    Attributes
    ----------
    pattern
        Shell wildcards that the operator's name must match.
    limits
        The limits of these outputs.
    reason
        Mandatory.
    dtype, operator_class
        Dtype computed in and class to match; empty for any.
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
        """Whether these limits apply to an output of an operator."""
        return (
            fnmatch.fnmatchcase(operator, self.pattern)
            and fnmatch.fnmatchcase(output, self.output)
            and self.dtype in ("", dtype)
            and self.operator_class in (None, operator_class)
        )

    @property
    def loosens(self) -> bool:
        """Whether any default limits that it may replace are tighter."""
        return any(
            self.limits.is_looser_than(limits)
            for dtype, row in DEFAULT_LIMITS.items()
            for name, limits in row.items()
            if self.dtype in ("", dtype) and self.operator_class in (None, name)
        )

    def describe(self) -> str:
        """The outputs it applies to."""
        narrowed = [
            self.dtype,
            self.operator_class or "",
            "" if self.output == "*" else self.output,
        ]
        rest = ", ".join(part for part in narrowed if part)
        return f"{self.pattern} ({rest})" if rest else self.pattern


@dataclass(frozen=True)
class ChosenLimits:
    """The limits of one output and their origin.

    Attributes
    ----------
    base
        The limits in the policy.
    dtype, operator_class
        The row of the policy.
    terms, growth
        Length of the operator's sums, and the resulting factor on `base`.
    override
        The override that they come from, if any.
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
        """The limits that the ratio is compared with."""
        return replace(
            self.base,
            passing=self.base.passing * self.growth,
            degraded=self.base.degraded * self.growth,
        )


@dataclass(frozen=True)
class Policy:
    """Everything a verdict depends on other than the numbers.

    Attributes
    ----------
    limits
        (dtype, operator class, limits) that replace the defaults.
    overrides
        Limits of single operators; the first that applies wins over `limits`.
    reason
        Why `limits` are looser than the defaults; mandatory if they are.
    repeats
        How often inputs are perturbed to measure the sensitivity.
    appeal_repeats
        The same before any verdict other than a pass.
    flushes_subnormals
        Dtypes whose subnormals may be lost: an error below the smallest normal number passes and is
        counted. float16's subnormals reach 6e-5, which models use, so it is not among them.
    seed
        Of the perturbations.
    version
        Version of the policy's meaning.

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
        """Choose the limits of an output.

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
            # An intermediate result of ten bits limits the precision of the output.
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
            If `data` is not a policy, or has an unknown version.
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
        """SHA-256 of the policy and the defaults in hexadecimal, for verdict keys."""
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


# An unclassified output may take the limits of any class.
_ANY: Final = "unclassified"


def policy_of_operator(policy: Policy, operator: Operator) -> Policy:
    """The policy without the limits and overrides that cannot apply to an operator.

    Limits of classes that no output has are dropped, and overrides whose pattern does not match the
    name. Dtypes are ignored, and an operator with an unclassified output keeps all limits.
    """
    if not policy.limits and not policy.overrides:
        return policy
    classes = {traits.operator_class for traits in traits_of(operator)}
    limits = policy.limits
    if _ANY not in classes:
        limits = tuple(row for row in limits if row[1] in classes)
    overrides = tuple(o for o in policy.overrides if fnmatchcase(operator.name, o.pattern))
    reason = policy.reason if limits else ""
    return replace(policy, limits=limits, overrides=overrides, reason=reason)
