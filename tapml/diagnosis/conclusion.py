"""Maps the results of a failing kernel's variants to a cause: a table, read from the top."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tapml.diagnosis.variants import NOT_THE_TARGET, Trial
from tapml.failures.diagnosis import Cause

Variant: TypeAlias = Literal[
    "again", "recompiled", "precise", "default math", "unoptimised", "second", "checked", "plain",
    "serial", "unfused",
]  # fmt: skip
"""
``again``
    The failing kernel itself.
``recompiled``
    A new compilation; not replayed if it equals the failing kernel.
``precise``, ``default math``
    With precise math; with the driver's usual math if the kernel had fast math.
``unoptimised``, ``second``
    The same text without this driver's optimiser; the same kernel on another driver.
``checked``
    The same kernel on a simulator that finds races and accesses out of bounds; run if the kernel
    passes at times or on another driver.
``plain``, ``serial``
    With the fallback schedule; on one thread, as written.
``unfused``
    The body's steps one after another.
"""


@dataclass(frozen=True)
class Evidence:
    """The trials so far.

    Attributes
    ----------
    trials
        By variant; a variant that was considered and not replayed has a trial without status.
    suspect
        The verdict's suspect (:attr:`tapml.verdicts.verdict.Verdict.suspect`).
    """

    trials: Mapping[Variant, Trial]
    suspect: str

    def right(self, *variants: Variant) -> bool:
        """Whether any of `variants` passes."""
        return any(self.trials[each].right for each in variants if each in self.trials)

    def wrong(self, variant: Variant) -> bool:
        """Whether `variant` fails as the original does."""
        return variant in self.trials and self.trials[variant].wrong

    def done(self, variant: Variant) -> bool:
        """Whether `variant` was considered, even if it could not be replayed."""
        return variant in self.trials

    @property
    def incomplete(self) -> bool:
        """Whether time ran out before all trials."""
        return any(trial.late for trial in self.trials.values())


@dataclass(frozen=True)
class Rule:
    """A row of the table: if `holds`, the cause is `cause`, and `sentence` explains it."""

    cause: Cause
    holds: Callable[[Evidence], bool]
    sentence: str


RULES: Final = (
    Rule(
        "unknown",
        lambda e: e.suspect in NOT_THE_TARGET,
        "the verdict accuses the reference or what it was made from, not this kernel",
    ),
    Rule(
        "unknown",
        lambda e: e.right("again"),
        "it did not fail again: what is wrong comes and goes, as with a race or memory that was "
        "never written; `tapml replay --check` looks for both",
    ),
    Rule(
        "unknown",
        lambda e: e.done("again") and not e.wrong("again"),
        "the failing kernel could not be replayed",
    ),
    Rule(
        "kernel text",
        lambda e: e.right("recompiled"),
        "a new compilation of the operator is right; the kernel that failed is a different one: "
        "written by hand, edited, or left over",
    ),
    Rule(
        "math",
        lambda e: e.right("default math"),
        "the same schedule and fusion are right without the option fast_math: leave it off for "
        "this operator, or write its function so that it holds under fast math",
    ),
    Rule(
        "math",
        lambda e: e.right("precise"),
        "the same schedule and fusion are right where products and sums round by themselves and "
        "every function is the full one: compile this operator with math=precise, or write its "
        "function in a stable form",
    ),
    Rule(
        "driver",
        lambda e: e.right("unoptimised") and e.right("second") and not e.wrong("checked"),
        "the same kernel is right on another driver, and on this one once its optimiser leaves it "
        "alone",
    ),
    Rule(
        "schedule",
        lambda e: e.right("plain", "serial") and e.wrong("checked"),
        "the operator is right under a plainer schedule, and this kernel breaks the rules of the "
        "platform: it works on another driver by chance",
    ),
    Rule(
        "driver",
        lambda e: e.right("plain", "serial") and e.right("second") and e.right("checked"),
        "the same kernel is right on another driver and keeps the platform's rules; this driver "
        "mistakes this form of the code",
    ),
    Rule(
        "schedule",
        lambda e: e.right("plain", "serial") and e.right("second"),
        "the operator is right under a plainer schedule. A second driver runs this kernel "
        "correctly: the schedule relies on what the platform does not promise (a missing barrier, "
        "threads in lockstep), or this driver mistakes this form of the code; "
        "`tapml replay --check` shows which",
    ),
    Rule(
        "schedule",
        lambda e: e.right("plain", "serial"),
        "the operator is right under a plainer schedule",
    ),
    Rule(
        "driver",
        lambda e: e.right("second") and e.done("serial") and not e.wrong("checked"),
        "the same kernel is right on another driver, and wrong on this one under every schedule "
        "that was tried",
    ),
    Rule(
        "driver",
        lambda e: (
            e.right("unoptimised")
            and e.done("serial")
            and not (e.wrong("second") or e.wrong("checked"))
        ),
        "the same kernel is right once this driver's optimiser leaves it alone",
    ),
    Rule(
        "fusion",
        lambda e: e.right("unfused"),
        "each of the operator's steps is right by itself, one after another; fused into one kernel "
        "they are wrong under every schedule that was tried",
    ),
    Rule(
        "unknown",
        lambda e: e.done("unfused") and e.incomplete,
        "nothing that was tried in time makes it right",
    ),
    Rule(
        "code generator",
        lambda e: e.done("unfused") and e.wrong("checked"),
        "this kernel breaks the rules of the platform, and the operator is wrong in every form",
    ),
    Rule(
        "code generator",
        lambda e: e.done("unfused") and e.wrong("second"),
        "it is wrong in every form and on two drivers; LLVM makes a right one of the same function",
    ),
    Rule(
        "code generator",
        lambda e: e.done("unfused"),
        "it is wrong in every form; LLVM makes a right one of the same function. Without a second "
        "driver, this one may be to blame as well",
    ),
)
"""The first rule that holds applies."""


def conclude(evidence: Evidence) -> Rule | None:
    """The first rule that holds; None while more trials are needed."""
    return next((rule for rule in RULES if rule.holds(evidence)), None)
