"""What a trial of a hand-written kernel gives: a verdict like a session's, and times beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Outcome: TypeAlias = Literal[
    "pass", "degraded", "fail", "not run", "does not fit", "does not build", "device lost"
]
"""A session's verdicts, and what comes before them: the manifest, the compiler, the device."""


@dataclass(frozen=True)
class Times:
    """Mean milliseconds of one call over the same carved tests; None where not known."""

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
    """One look at a kernel.

    Attributes
    ----------
    operator
        Its name.
    outcome
        What came of it.
    reason
        Why, in numbers; a compiler's text where it does not build.
    worst_ratio
        Largest error ratio of its tests; None where none ran.
    passed, tests, probes
        Carved tests that pass, that ran, and exact probes beside them.
    of
        Carved tests there are.
    cases
        How many of the cases given ran, probes included.
    times
        The kernel's, the compiled one's and the reference's.
    seconds
        What the look took: the kernel's build and the replay.
    build_seconds
        The build alone.
    hasty
        Whether a closer measurement of the inputs is still to come; it may acquit.
    interrupted
        Whether a save ended it early.
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
        """Whether a session would take the kernel, by the tests that ran."""
        return self.outcome == "pass"

    def to_json(self) -> dict[str, Any]:
        """Plain data for strict JSON."""
        ratio = self.worst_ratio
        return {
            "operator": self.operator,
            "outcome": self.outcome,
            "reason": self.reason,
            "worst_ratio": ratio if ratio is None or math.isfinite(ratio) else str(ratio),
            "passed": self.passed,
            "tests": self.tests,
            "probes": self.probes,
            "of": self.of,
            "times": self.times.to_json(),
            "seconds": round(self.seconds, 6),
            "build_seconds": round(self.build_seconds, 6),
            "hasty": self.hasty,
        }
