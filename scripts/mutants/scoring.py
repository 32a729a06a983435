"""Runs mutants and decides whether each is observable, and whether tapml finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from scripts.mutants.observing import OUTSIDE, Trace, observe
from scripts.mutants.sampling import Mutant
from scripts.mutants.subject import Device, Subject
from tapml.oracles.probing import is_probe
from tapml.replaying.replayer import replay_operator
from tapml.replaying.results import OperatorVerdict
from tapml.verdicts.verdict import OutputNumbers
from tapml_rpc.remote import RemoteLibrary
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import CompileError, DeviceLostError, MismatchError
from tapml_targets.library import Library

Result = TypeVar("Result")
Outcome = Literal["not built", "equivalent", "detected", "missed"]


@dataclass(frozen=True)
class Score:
    """The result of one mutant.

    Attributes
    ----------
    mutant
        Which.
    outcome
        Whether it was built, shows, and was found.
    observed
        What differs from the right kernel; empty for an equivalent mutant.
    found_by
        ``numbers``, ``memory checks``, ``probes``, ``lost device``, ``refused call`` or the name
        of the platform's checker.
    status
        Of the verdict.
    ratio
        Largest error / (sensitivity + ulp) over all tests; 0 without floating-point outputs.
    relative
        The same in units of its limit.
    clean
        `relative` of the right kernel.
    reason
        The verdict's, or the compiler's.
    unchecked
        Why Oclgrind did not check it although it might find something; else empty.
    """

    mutant: Mutant
    outcome: Outcome
    observed: str = ""
    found_by: str = ""
    status: str = ""
    ratio: float = 0.0
    relative: float = 0.0
    clean: float = 0.0
    reason: str = ""
    unchecked: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        site = self.mutant.site
        return {
            "name": self.mutant.name,
            "operator": self.mutant.operator,
            "kind": site.kind,
            "rule": site.rule,
            "line": site.line,
            "before": site.before,
            "after": site.after,
            "outcome": self.outcome,
            "observed": self.observed,
            "found_by": self.found_by,
            "status": self.status,
            "ratio": str(self.ratio),
            "relative": str(self.relative),
            "clean_relative": str(self.clean),
            "reason": self.reason,
            "unchecked": self.unchecked,
        }


@dataclass(frozen=True)
class _Clean:
    """The right kernel of an operator."""

    traces: tuple[Trace, ...]
    relative: float


class Scorer:
    """Scores the mutants of one subject on one device.

    Parameters
    ----------
    subject
        Suite, kernels and oracle.
    device
        Where everything runs.
    """

    def __init__(self, subject: Subject, device: Device) -> None:
        self._subject = subject
        self._device = device
        self._clean: dict[str, _Clean] = {}

    def score(self, mutants: Iterable[Mutant]) -> Iterator[Score]:
        """Score them in the order given; operator by operator is fastest."""
        for mutant in mutants:
            yield self._score(mutant)

    def largest_clean(self) -> float:
        """Largest ratio of a right kernel so far, in units of its limit."""
        return max((clean.relative for clean in self._clean.values()), default=0.0)

    def _score(self, mutant: Mutant) -> Score:
        clean = self._afresh(lambda: self._clean_of(mutant.operator))
        library = mutant.site.apply(self._subject.libraries[mutant.operator])
        try:
            self._afresh(lambda: self._device.session.upload(library))
        except (CompileError, DeviceLostError) as error:
            # If the driver's compiler crashes, no kernel ran.
            self._device.close()
            return Score(mutant, "not built", reason=str(error).splitlines()[0])
        try:
            verdict, observed = self._afresh(lambda: self._run(mutant.operator, library, clean))
        except DeviceLostError as error:
            # A lost device is the verdict on the operator that ran.
            self._device.close()
            reason = str(error).splitlines()[0]
            return Score(mutant, "detected", "the device is lost", "lost device", "fail",
                         reason=reason)  # fmt: skip
        if observed == OUTSIDE:
            # It may have overwritten the driver's memory.
            self._device.close()
        numbers = _float_outputs(verdict)
        score = Score(
            mutant,
            "missed",
            observed,
            status=verdict.status,
            ratio=max((output.ratio for output in numbers), default=0.0),
            relative=_relative(numbers),
            clean=clean.relative,
            reason=verdict.reason,
        )
        if verdict.status in ("fail", "degraded"):
            return replace(score, outcome="detected", found_by=_found_by(verdict),
                           observed=observed or "the verdict")  # fmt: skip
        return score if observed else replace(score, outcome="equivalent")

    def _afresh(self, work: Callable[[], Result]) -> Result:
        """Do `work`; if the device is lost, once more on a new one.

        An out-of-bounds write may kill the device only after the kernel has ended.
        """
        try:
            return work()
        except DeviceLostError:
            self._device.close()
            return work()

    def _run(self, operator: str, library: Library, clean: _Clean) -> tuple[OperatorVerdict, str]:
        """The verdict, and the observed difference."""
        remote = self._device.session.upload(library)
        verdict = self._replay(operator, remote)
        observed = self._observed(operator, remote, clean)
        self._device.session.unload(remote)
        return verdict, observed

    def _replay(self, operator: str, remote: RemoteLibrary) -> OperatorVerdict:
        subject = self._subject
        plan_operator = subject.operators[operator]
        return replay_operator(
            plan_operator, subject.probing.tests(plan_operator, subject.tests[operator]), remote,
            self._device.session, subject.probing, subject.policy, memory=self._device.memory,
        )  # fmt: skip

    def _traces(self, operator: str, remote: RemoteLibrary) -> tuple[Trace, ...]:
        plan_operator = self._subject.operators[operator]
        return tuple(
            observe(plan_operator, test, remote, self._device.session)
            for test in self._subject.tests[operator]
        )

    def _observed(self, operator: str, remote: RemoteLibrary, clean: _Clean) -> str:
        """The first difference that a test shows."""
        changes = (
            trace.differs_in(right)
            for trace, right in zip(self._traces(operator, remote), clean.traces, strict=True)
        )
        return next(filter(None, changes), "")

    def _clean_of(self, operator: str) -> _Clean:
        """The right kernel's traces and numbers; it must pass and be deterministic."""
        known = self._clean.get(operator)
        if known is not None:
            return known
        library = self._subject.libraries[operator]
        remote = self._device.session.upload(library)
        verdict = self._replay(operator, remote)
        if verdict.status != "pass":
            raise MismatchError(
                f"the right kernel of {operator} is {verdict.status}: {verdict.reason}; mutants "
                "can be scored only against kernels that pass"
            )
        traces = self._traces(operator, remote)
        if self._traces(operator, remote) != traces:
            raise MismatchError(f"the right kernel of {operator} gives other bits each time")
        clean = _Clean(traces, _relative(_float_outputs(verdict)))
        self._clean[operator] = clean
        return clean


def _float_outputs(verdict: OperatorVerdict) -> list[OutputNumbers]:
    return [
        output
        for result in verdict.results
        for output in result.verdict.outputs
        if lookup(output.dtype).is_float
    ]


def _relative(outputs: Sequence[OutputNumbers]) -> float:
    """Largest ratio in units of its limit."""
    return max((output.ratio / output.passing for output in outputs), default=0.0)


def _found_by(verdict: OperatorVerdict) -> str:
    carved = [result for result in verdict.results if not is_probe(result.test)]
    if verdict.results and all(result.verdict.status == "pass" for result in carved):
        return "probes"
    verdicts = [result.verdict for result in carved]
    if any(output.status != "pass" for each in verdicts for output in each.outputs):
        return "numbers"
    return "memory checks" if any(each.findings for each in verdicts) else "refused call"
