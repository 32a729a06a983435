"""Invariants tested on a run, and violations grouped by what they have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from tapml.durable.strict_json import to_strict
from tapml.invariants.invariant import Invariant, InvariantSet
from tapml.invariants.precondition import ALWAYS, applies, text_of
from tapml.invariants.record import BEFORE_TRAINING, FORWARD, GRAPH, Record, Window, windows_of
from tapml.invariants.relation import Memory, Relation, relations, short_name
from tapml.invariants.trace import Trace
from tapml.runs.wording import counted
from tapml_targets.errors import InputError

FORMAT: Final = "tapml-invariants-check/1"
OnViolation: TypeAlias = Literal["report", "warn", "stop"]
"""What is done when a violation is found in a run that goes on."""
_SUBJECTS: Final = 8
_VALUES: Final = 12
_APIS: Final = 3
_LEAST_STEPS: Final = 3
_LEAST_MODULES: Final = 2


def check_on_violation(kind: str) -> None:
    """Raise InputError for anything that is no :data:`OnViolation`."""
    if kind not in get_args(OnViolation):
        known = ", ".join(get_args(OnViolation))
        raise InputError(f"on_violation is {kind!r}; expected one of {known}")


class Violation(msgspec.Struct, frozen=True):
    """One place where an invariant does not hold.

    Attributes
    ----------
    step, rank
        Where.
    subject
        The variable or call.
    source
        ``file:line`` of the script; empty if the rule is not about one call.
    found
        What was there instead.
    values
        Fields of the last record involved.
    """

    step: int
    rank: int
    subject: str
    source: str
    found: str
    values: dict[str, Any]


@dataclass
class Finding:
    """An invariant that was violated, with its first violation.

    Attributes
    ----------
    invariant
        The rule.
    first
        The earliest violation.
    count
        All violations.
    steps, ranks, subjects
        Where they were.
    """

    invariant: Invariant
    first: Violation
    count: int = 0
    steps: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    subjects: dict[str, None] = field(default_factory=dict)

    def add(self, violation: Violation) -> None:
        """Count a violation."""
        self.count += 1
        self.steps.add(violation.step)
        self.ranks.add(violation.rank)
        self.subjects[violation.subject] = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.invariant.id,
            "relation": self.invariant.relation,
            "invariant": self.invariant.text,
            "precondition": text_of(self.invariant.precondition),
            "violations": self.count,
            "steps": sorted(self.steps),
            "ranks": sorted(self.ranks),
            "subjects": list(self.subjects)[:_SUBJECTS],
            "first": to_strict(msgspec.to_builtins(self.first)),
        }


class Checker:
    """Tests invariants window by window, on a stored trace or while a script trains."""

    def __init__(self, invariants: InvariantSet) -> None:
        self.set = invariants
        known = relations()
        calls = {
            name
            for each in invariants.invariants
            for name in known[each.relation].calls(each.params)
        }
        # A run that has all modules that the rules are about is one of the program that was
        # learned from; one alone may be anybody's.
        modules = {name for name in calls if name.endswith(".forward") and name != FORWARD}
        several = len(modules) >= _LEAST_MODULES
        self._awaited = modules if several else None
        self._held_back: dict[str, _Examined] = {}
        self._tests = [
            _Test(each.id, each, known[each.relation], each.precondition == ALWAYS)
            for each in invariants.invariants
            if not known[each.relation].own or (several and each.runs == len(invariants.runs))
        ]
        self.findings: dict[str, Finding] = {}
        self._applied: Counter[str] = Counter()
        self._last: list[_Examined] = []
        self._special: list[_Examined] = []
        self._again = 0
        self._called: dict[str, Record] = {}

    @property
    def applied(self) -> Counter[str]:
        """How often each rule applied, by its id."""
        again, self._again = self._again, 0
        if again:
            for test, applied, violations in self._last:
                known = self._known or not test.relation.own
                if not violations and not test.relation.batches and applied and known:
                    self._applied[test.id] += again * applied
        return self._applied

    def check(self, window: Window) -> list[Finding]:
        """Test a window; returns the findings that are new in it."""
        counted = self.applied
        for name, records in window.by_name.items():
            self._called.setdefault(name, records[0])
            for record in records if name == FORWARD else ():
                self._called.setdefault(f"{FORWARD} {record.fields.get('class')}", record)
            if self._awaited:
                self._awaited.discard(name)
        self._last = [(test, *self._examine(test, window)) for test in self._tests]
        self._special = [each for each in self._last if each[2] or each[0].relation.batches]
        found_now = self._last
        if self._known and self._held_back:
            found_now = [*self._held_back.values(), *self._last]
            self._held_back = {}
        new = [each for found in found_now for each in self._count(counted, *found)]
        if window.all_seen and window.step >= _LEAST_STEPS:
            new += [
                each
                for found in self._missing(window.step)
                for each in self._count(counted, *found)
            ]
        return new

    @property
    def _known(self) -> bool:
        """Whether this is a run of the program that was learned from."""
        return self._awaited is not None and not self._awaited

    def _missing(self, steps: int) -> Iterator[_Examined]:
        """In a whole run of the program that was learned from: calls that it does not make."""
        if not self._known:
            return
        for test in self._tests:
            if not self._applied[test.id] and test.invariant.runs == len(self.set.runs):
                missing = test.relation.missing(test.invariant.params, self._called, steps)
                if missing is not None:
                    call, found = missing
                    yield test, 1, [_violation(self._called[call], call, found)]

    def repeat(self, batches: Window) -> list[Finding]:
        """A step like the last two: what was found in it holds again, but for its batches."""
        self._again += 1
        new = []
        for test, applied, violations in self._special:
            if test.relation.batches:
                if any(batches.processes):
                    new += self._count(self._applied, test, *self._examine(test, batches))
            else:
                again = [msgspec.structs.replace(each, step=batches.step) for each in violations]
                self._count(self._applied, test, applied, again)
        return new

    def remember(self, window: Window) -> None:
        """Let the rules remember a step that was counted with :meth:`repeat`."""
        for test in self._tests:
            if not test.relation.batches:
                self._examine(test, window)

    def never_called(self) -> tuple[str, ...]:
        """APIs that rules are about and the run has not called."""
        wanted = {
            name for test in self._tests for name in test.relation.calls(test.invariant.params)
        }
        return tuple(sorted(wanted - self._called.keys()))

    def _examine(self, test: _Test, window: Window) -> tuple[int, list[Violation]]:
        """How often a rule applies in a window, and where it does not hold."""
        invariant, applied, violations = test.invariant, 0, []
        for example in test.relation.examples(window, invariant.params, test.memory):
            if test.always or applies(invariant.precondition, example.records):
                applied += 1
                if not example.holds:
                    violations.append(_violation(example.last, example.subject, example.found))
        return applied, violations

    def _count(
        self, counted: Counter[str], test: _Test, applied: int, violations: list[Violation]
    ) -> list[Finding]:
        """Count what a window gave; the finding if it is the rule's first."""
        if test.relation.own and not self._known:
            before = self._held_back.get(test.id, (test, 0, []))
            kept = [*before[2], *violations][:_SUBJECTS]
            self._held_back[test.id] = test, before[1] + applied, kept
            return []
        if applied:
            counted[test.id] += applied
        if not violations:
            return []
        finding, new = self.findings.get(test.id), []
        if finding is None:
            finding = self.findings[test.id] = Finding(test.invariant, violations[0])
            new = [finding]
        for violation in violations:
            finding.add(violation)
        return new


@dataclass(frozen=True)
class _Test:
    id: str
    invariant: Invariant
    relation: Relation
    always: bool
    memory: Memory = field(default_factory=dict)


_Examined = tuple[_Test, int, list[Violation]]
"""A rule, how often it applied in a window, and where it did not hold."""


def _violation(record: Record, subject: str, found: str) -> Violation:
    # The graph of a loss is long, and says nothing about other rules.
    shown = [(name, value) for name, value in record.fields.items() if name != GRAPH]
    values = dict(shown[:_VALUES])
    return Violation(record.step, record.rank, subject, record.source, found, values)


@dataclass(frozen=True)
class Cause:
    """Violated invariants that are about one thing, the one that names it best first."""

    findings: tuple[Finding, ...]

    @property
    def head(self) -> Finding:
        """The finding that names the cause best."""
        return self.findings[0]

    @property
    def first_step(self) -> int:
        """The step of the earliest violation."""
        return min(each.first.step for each in self.findings)

    @property
    def source(self) -> str:
        """A line of the script that the group points at; empty if none does."""
        return next((each.first.source for each in self.findings if each.first.source), "")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "cause": self.head.invariant.text,
            "found": self.head.first.found,
            "first_step": self.first_step,
            "source": self.source,
            "findings": [each.to_json() for each in self.findings],
        }


def grouped(findings: Iterable[Finding]) -> tuple[Cause, ...]:
    """Findings by cause: those that share an API or a kind of variable belong together.

    In a group, the rules that name a cause come first, then those that were violated first.
    """
    known = relations()
    groups: list[tuple[set[str], list[Finding]]] = []
    for finding in findings:
        about = set(known[finding.invariant.relation].concerns(finding.invariant.params))
        members = [finding]
        apart = []
        for topics, others in groups:
            if topics & about:
                about |= topics
                members = others + members
            else:
                apart.append((topics, others))
        groups = [*apart, (about, members)]

    def place(finding: Finding) -> tuple[bool, int, int, str]:
        structural = known[finding.invariant.relation].structural
        return (not structural, finding.first.step, -finding.count, finding.invariant.id)

    causes = [Cause(tuple(sorted(members, key=place))) for _, members in groups]
    return tuple(sorted(causes, key=lambda each: (each.first_step, -len(each.findings))))


@dataclass(frozen=True)
class CheckReport:
    """The result of a check.

    Attributes
    ----------
    run
        What was checked.
    steps, ranks
        What it had.
    causes
        The violations.
    held
        Invariants that applied and held everywhere.
    idle
        Invariants that never applied, for example because the run calls another API.
    notes
        What was incomplete about the run.
    never_called
        APIs that invariants are about and the run does not call.
    """

    run: str
    steps: int
    ranks: tuple[int, ...]
    causes: tuple[Cause, ...]
    held: int
    idle: tuple[Invariant, ...]
    notes: tuple[str, ...] = ()
    never_called: tuple[str, ...] = ()

    @property
    def violated(self) -> int:
        """Invariants that were violated."""
        return sum(len(cause.findings) for cause in self.causes)

    @property
    def headline(self) -> str:
        """The result in one line."""
        if not self.violated:
            hold = "1 invariant holds" if self.held == 1 else f"{self.held} invariants hold"
            return f"{hold} over {counted(self.steps, 'step')}; none is violated"
        are = "is" if self.violated == 1 else "are"
        first = min(cause.first_step for cause in self.causes)
        return (
            f"{self.violated} of {counted(self.violated + self.held, 'invariant')} {are} violated, "
            f"first in {step_text(first)}: {counted(len(self.causes), 'likely cause')}"
        )

    @property
    def idle_text(self) -> str:
        """How many invariants did not apply, and which APIs the run does not call."""
        said = f"{len(self.idle)} did not apply"
        if not self.idle or not self.never_called:
            return said
        shown = ", ".join(map(short_name, self.never_called[:_APIS]))
        more = len(self.never_called) - _APIS
        others = f" and {counted(more, 'more API')}" if more > 0 else ""
        return f"{said}, the run does not call {shown}{others}"

    def to_json(self) -> dict[str, Any]:
        """Plain data for strict JSON, format ``tapml-invariants-check/1``."""
        return {
            "format": FORMAT,
            "run": self.run,
            "headline": self.headline,
            "steps": self.steps,
            "ranks": list(self.ranks),
            "violated": self.violated,
            "held": self.held,
            "not_applicable": [each.id for each in self.idle],
            "never_called": list(self.never_called),
            "causes": [each.to_json() for each in self.causes],
            "notes": list(self.notes),
        }


def step_text(step: int) -> str:
    """``step 3``, or ``set-up`` before training."""
    return "set-up" if step == BEFORE_TRAINING else f"step {step}"


def report_of(
    checker: Checker, run: str, steps: int, ranks: Sequence[int], notes: Sequence[str] = ()
) -> CheckReport:
    """What a checker has found so far."""
    applied = checker.applied
    idle = tuple(each for each in checker.set.invariants if not applied[each.id])
    held = len(checker.set.invariants) - len(idle) - len(checker.findings)
    causes = grouped(checker.findings.values())
    return CheckReport(
        run, steps, tuple(ranks), causes, held, idle, tuple(notes), checker.never_called()
    )


def check_trace(trace: Trace, invariants: InvariantSet, *, name: str = "") -> CheckReport:
    """Test a stored trace; the report calls it by a name or its folder."""
    checker = Checker(invariants)
    for window in windows_of(trace.processes):
        checker.check(window)
    return report_of(checker, name or trace.folder.name, trace.steps, trace.ranks, trace.notes)


def said(finding: Finding) -> str:
    """A finding in one line: where, what was found, what was expected."""
    first = finding.first
    where = f"{first.source}: " if first.source else ""
    return f"{where}{step_text(first.step)}: {first.found}. Expected: {finding.invariant.text}"
