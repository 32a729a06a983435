"""Finds the step of an operator that fails.

There are three kinds of evidence, from direct to indirect: the step's own kernel fails; the kernel
of the steps up to it fails and that of the steps before it does not; a standard mistake in it
reproduces the target's output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tapml.diagnosis.cutting import Cut, prefix_operator, step_operator
from tapml.diagnosis.evaluation import rounded
from tapml.diagnosis.failure_context import FailureContext, wrong_outputs
from tapml.diagnosis.hypotheses import Match, find_mistakes
from tapml.diagnosis.inner_replay import InnerReplay, replay_inner
from tapml.diagnosis.reading import ReadOperator
from tapml.diagnosis.step_origins import origins_of_step
from tapml.failures.diagnosis import MAX_TEXT, HowFound, InnerStep

_ALTERNATIVES: Final = 3


@dataclass(frozen=True)
class FoundStep:
    """The step, from 0, the replay of its own kernel if that fails, and the mistake it makes."""

    position: int
    step: InnerStep
    replay: InnerReplay | None
    match: Match | None


def find_step(context: FailureContext) -> FoundStep | None:
    """The inner step that fails; None, and notes on what is excluded, if unknown.

    Raises
    ------
    DeviceLostError
        If the device is lost.
    """
    if not any(output.wrong.any() for output in context.outputs):
        context.note("no output is wrong by its numbers, so no step is looked for")
        return None
    read = context.read
    return None if read is None else _Search(context, read).find()


class _Search:
    def __init__(self, context: FailureContext, read: ReadOperator) -> None:
        self._context = context
        self._read = read
        self._steps = read.steps.steps

    def find(self) -> FoundStep | None:
        """Try mistakes first, which is quick and needs no device; then kernels."""
        context, count = self._context, len(self._steps)
        matches = find_mistakes(
            context, self._read.steps, context.exact, context.outputs, range(count)
        )
        if count == 1:
            return self._found(0, "only step", None, matches)
        refined = self._first_wrong_step()
        if refined is not None:
            return self._found(refined[0], "refined kernel", refined[1], matches)
        prefix = self._first_wrong_prefix()
        if prefix is not None:
            return self._found(prefix[0], "prefix kernel", prefix[1], matches)
        if matches:
            return self._found(matches[0].position, "hypothesis", None, matches)
        return None

    def _first_wrong_step(self) -> tuple[int, InnerReplay] | None:
        """The first step whose own kernel does not pass."""
        right = []
        for position, step in enumerate(self._steps):
            if self._late(f"steps {position + 1} to {len(self._steps)} were not run by themselves"):
                return None
            cut = step_operator(self._read, position)
            replay = replay_inner(self._context, self._read.steps, cut, f"step {step.name}")
            if replay is not None and replay.wrong:
                return position, replay
            if replay is not None:
                right.append(step.name)
        self._context.note(f"passing as kernels of their own: {', '.join(right) or 'none'}")
        return None

    def _first_wrong_prefix(self) -> tuple[int, InnerReplay] | None:
        """The first step at which the kernel of all steps up to it stops passing."""
        last = len(self._steps) - 1
        for position, step in enumerate(self._steps):
            whole = position == last and len(self._read.steps.outputs) == 1
            if len(self._read.steps.needed(position)) == 1:
                continue
            if self._late(f"kernels of the steps up to {step.name} and further were not tried"):
                return None
            cut = self._whole() if whole else prefix_operator(self._read, position)
            what = "the recompiled operator" if whole else f"the kernel up to {step.name}"
            replay = replay_inner(self._context, self._read.steps, cut, what)
            if replay is None:
                continue
            if replay.wrong and not whole:
                return position, replay
            if whole:
                self._say_about_whole(replay)
        return None

    def _whole(self) -> Cut:
        steps = self._read.steps
        return Cut(self._read.operator, steps.inputs, steps.outputs)

    def _say_about_whole(self, replay: InnerReplay) -> None:
        if replay.wrong:
            self._context.note(
                "the kernels of the steps up to the last but one pass: the fault arises only in "
                "the kernel of all steps"
            )
        else:
            self._context.note(
                "recompiled, the operator passes: the failing kernel is not the one that the "
                "compiler makes now, or it does not fail every time"
            )

    def _late(self, consequence: str) -> bool:
        if self._context.expired():
            self._context.note(f"time was up: {consequence}")
            return True
        return False

    def _found(
        self, position: int, how: HowFound, replay: InnerReplay | None, matches: list[Match]
    ) -> FoundStep:
        step = self._steps[position]
        mine = [match for match in matches if match.position == position]
        if not mine and replay is not None and how == "refined kernel":
            mine = self._mistakes_of_kernel(position, replay)
        match = mine[0] if mine else None
        others = [each for each in matches if each is not match][:_ALTERNATIVES]
        for other in others:
            name = self._steps[other.position].name
            self._context.note(
                f"the output is also what comes out where {name} {other.mistake.words}"
            )
        verdict = (replay or self._context.failure).result.verdict
        ratio, limit = verdict.worst_ratio, min((o.passing for o in verdict.outputs), default=0.0)
        if how == "hypothesis" and match is not None:
            ratio, limit = match.ratio, match.limit
        found = InnerStep(
            name=step.name,
            position=position + 1,
            count=len(self._steps),
            operation=step.text[:MAX_TEXT],
            origins=origins_of_step(step.name, self._context.failure.origins),
            found=how,
            ratio=ratio,
            limit=limit,
            mistake=match.mistake.words if match is not None else "",
            sentence=self._sentence(position, how, replay, match),
        )
        return FoundStep(position, found, replay if how == "refined kernel" else None, match)

    def _mistakes_of_kernel(self, position: int, replay: InnerReplay) -> list[Match]:
        """The mistakes that explain what the step's own kernel gave on its own inputs."""
        if replay.expectation is None:
            return []
        steps, context = self._read.steps, self._context
        known = {
            name: rounded(context.exact[name], steps.tensors[name].dtype)
            for name in replay.cut.reads
        }
        outputs = wrong_outputs(
            context.failure, replay.expectation, replay.result.actual, replay.cut.writes
        )
        return find_mistakes(context, steps, known, outputs, [position])

    def _sentence(
        self, position: int, how: HowFound, replay: InnerReplay | None, match: Match | None
    ) -> str:
        step, count = self._steps[position], len(self._steps)
        name = f"step {position + 1} of {count} ({step.name})"
        text = ""
        if how == "only step":
            text = f"the operator is a single step, {step.text}"
        elif how == "refined kernel" and replay is not None:
            text = f"{name} is wrong by itself: {replay.result.verdict.reason}"
        elif how == "prefix kernel" and replay is not None:
            text = (
                f"{name} passes by itself, but the kernel of the steps up to it does not: "
                f"{replay.result.verdict.reason}"
            )
        if match is None:
            return text
        where = "" if match.everywhere else "in the elements that are wrong, "
        subject = "it" if how == "only step" else name
        guess = (
            f"{where}the output is what comes out where {subject} {match.mistake.words} "
            f"({match.elements} wrong elements looked at, the farthest off by {match.ratio:.2g} "
            f"times (sensitivity + ulp); limit {match.limit:.3g})"
        )
        return f"{text}; {guess}" if text else guess
