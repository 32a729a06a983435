"""The result of a trial of a hand-written kernel: a verdict like a session's, and times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tapml.durable.strict_json import to_strict

Outcome: TypeAlias = Literal[
    "pass", "degraded", "fail", "not run", "does not fit", "does not build", "device lost"
]
"""A session's verdicts, and earlier failures: of the manifest, the compiler, the device."""


@dataclass(frozen=True)
class Times:
    """Mean milliseconds of one call over the same carved tests; None if unknown."""

    kernel: float | None = None
    compiled: float | None = None
    reference: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """Plain data."""
        return {
            "kernel_ms": self.kernel,
            "compiled_ms": self.compiled,
            "reference_ms": self.reference,
        }


@dataclass(frozen=True)
class TrialResult:
    """The result of one trial.

    Attributes
    ----------
    operator
        Its name.
    outcome
        Its outcome.
    reason
        Why, in numbers; the compiler's log if it does not build.
    worst_ratio
        Largest error ratio of its tests; None if none ran.
    passed, tests, probes
        Carved tests that passed, that ran, and exact probes that ran.
    of
        Number of all carved tests.
    cases
        How many of the given cases ran, probes included.
    times
        The kernel's, the compiled one's and the reference's.
    seconds
        Seconds of the build and the replay.
    build_seconds
        Seconds of the build.
    hasty
        Whether a closer measurement is pending, which may turn the verdict into a pass.
    interrupted
        Whether a save interrupted it.
    """

    operator: str
    outcome: Outcome
    reason: str
    worst_ratio: float | None = None
    passed: int = 0
    tests: int = 0
    probes: int = 0
    of: int = 0
    cases: int = 0
    times: Times = field(default_factory=Times)
    seconds: float = 0.0
    build_seconds: float = 0.0
    hasty: bool = False
    interrupted: bool = False

    @property
    def passes(self) -> bool:
        """Whether a session would accept the kernel, by the tests that ran."""
        return self.outcome == "pass"

    def to_json(self) -> dict[str, Any]:
        """Plain data for strict JSON."""
        return {
            "operator": self.operator,
            "outcome": self.outcome,
            "reason": self.reason,
            "worst_ratio": to_strict(self.worst_ratio),
            "passed": self.passed,
            "tests": self.tests,
            "probes": self.probes,
            "of": self.of,
            "times": self.times.to_json(),
            "seconds": round(self.seconds, 6),
            "build_seconds": round(self.build_seconds, 6),
            "hasty": self.hasty,
        }
