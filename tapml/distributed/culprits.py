"""Who is to blame for a crash or a hang: the culprit, not the ranks that then wait or lose it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from tapml.isolate.death import GroupReport

MARK: Final = "tapml-witness "
DONE: Final = "done"
_LONGEST: Final = 300
_POINT_TO_POINT: Final = ("send", "recv", "recvAnySource")
_SAME_SIZES: Final = ("all_reduce", "broadcast")

# What gloo throws if it gets more bytes than it waits for: another collective, or another size.
_OTHER_SIZE: Final = "op.preamble.length"
_SAME_CALLS: Final = (
    "let all ranks call the same collectives with the same sizes: every rank must use every layer "
    "that is sharded"
)

Collective: TypeAlias = "tuple[int, str, list[list[int]], str]"
"""Its number, name, sizes, and the line that called it; empty if no line did."""


class Testimony(msgspec.Struct):
    """What one rank's witness printed (:mod:`tapml.distributed.witness`)."""

    __test__ = False

    rank: int
    stage: str
    error: str
    collectives: int
    last: list[Collective]
    places: list[str]

    @property
    def text(self) -> str:
        """One line about the rank."""
        where = f", at {self.places[-1]}" if self.places else ""
        doing = f" raised {self.error}" if self.error else f" is in {self.stage!r}"
        if self.stage == DONE and not self.error:
            doing, where = " has finished", ""
        last = f"; last {_words(self.last[-1])}" if self.last else ""
        return f"rank {self.rank}{doing}{where}; {self.collectives} collectives{last}"[:_LONGEST]


@dataclass(frozen=True)
class Blame:
    """The culprits, what they were doing, why it is they, a line for each rank, a remedy."""

    ranks: tuple[int, ...]
    stage: str
    reason: str
    details: tuple[str, ...]
    remedy: str = ""


def blame(report: GroupReport) -> Blame:
    """Find the culprits from the ranks' testimonies and the pool's report."""
    heard = _testimonies(report.tails)
    details = tuple(heard[rank].text for rank in sorted(heard))
    if report.death is not None and report.culprit is not None:
        # It died without a word; the pool saw which rank went first.
        last = _last_words(_without_marks(report.tails[report.culprit]))
        reason = f"rank {report.culprit} {report.reason}" + (f": {last}" if last else "")
        remedy = _SAME_CALLS if _OTHER_SIZE in last else ""
        return Blame((report.culprit,), _stage(heard, report.culprit), reason, details, remedy)
    raised = [each for each in heard.values() if each.error]
    split = _parting(list(heard.values()))
    if split is not None:
        ranks, reason = split
        errors = [each for each in raised if each.rank in ranks] or raised
        said = f"; {errors[0].error}" if errors else ""
        return Blame(ranks, _stage(heard, ranks[0]), reason + said, details)
    if report.culprit is not None:
        found = heard.get(report.culprit)
        error = found.error if found is not None else report.reason
        place = found.places[-1] if found is not None and found.places else ""
        # The job's errors say their line themselves.
        where = f" ({place})" if place and place.split()[0] not in error else ""
        same = tuple(each.rank for each in raised if each.error == error) or (report.culprit,)
        return Blame(
            same, _stage(heard, report.culprit), f"{_ranks(same)} raised {error}{where}", details
        )
    return _hang(report, heard, details)


def refused_alone(report: GroupReport) -> Blame | None:
    """The ranks that raised, if others go on without them; None if they all may have raised."""
    heard = _testimonies(report.tails)
    raised = [each for each in heard.values() if each.error]
    most = max((each.collectives for each in raised), default=0)
    gone_on = [each for each in heard.values() if not each.error and each.collectives > most]
    if not raised or not gone_on:
        return None
    ranks = tuple(each.rank for each in raised)
    waiting = _awaited(gone_on)
    details = tuple(heard[rank].text for rank in sorted(heard))
    return Blame(
        ranks,
        raised[0].stage,
        f"{_ranks(ranks)} alone raised {raised[0].error}; {_ranks([gone_on[0].rank])} goes on to "
        f"{waiting}",
        details,
        "let all ranks decide alike, or let one decide and send the others what it decides",
    )


def _hang(report: GroupReport, heard: dict[int, Testimony], details: tuple[str, ...]) -> Blame:
    """Nobody failed: the culprits have begun fewer collectives than others, or alone go on."""
    seconds = report.death.deadline_seconds if report.death is not None else 0.0
    reason = f"no end within {seconds:g} s"
    silent = tuple(rank for rank in range(report.size) if rank not in heard)
    if heard and silent:
        awaited = _awaited(list(heard.values()))
        waits = f"; the others wait in {awaited}" if awaited else ""
        return Blame(
            silent,
            "",
            f"{reason}: {_ranks(silent)} cannot say where: stopped, or in a call that keeps all "
            f"of Python waiting{waits}",
            details,
        )
    most = max((each.collectives for each in heard.values()), default=0)
    behind = [each for each in heard.values() if each.collectives < most]
    working = [each for each in heard.values() if each.stage != DONE]
    if not behind and len(working) < len(heard):
        behind = working
    if not behind:
        stages = sorted({each.stage for each in heard.values()})
        return Blame((), ", ".join(stages), f"{reason}: all ranks wait", details)
    first = behind[0]
    ranks = tuple(each.rank for each in behind)
    who, several = _ranks(ranks), len(ranks) > 1
    awaited = _awaited([each for each in heard.values() if each not in behind])
    if first.stage == DONE:
        return Blame(
            ranks,
            first.stage,
            f"{reason}: {who} {'have' if several else 'has'} finished without {awaited}, in which "
            "the others wait",
            details,
            "let every rank use every layer, or give DistributedDataParallel "
            "find_unused_parameters=True",
        )
    where = first.places[-1] if first.places else first.stage
    does = "do" if several else "does"
    reaches = first.collectives < most and bool(awaited)
    return Blame(
        ranks,
        first.stage,
        f"{reason}: {who} {does} not "
        + (
            f"reach {awaited}, in which the others wait; {who} stand{'' if several else 's'} at "
            if reaches
            else "end ("
        )
        + where
        + ("" if reaches else ")"),
        details,
    )


def _awaited(waiting: Sequence[Testimony]) -> str:
    """The last collective that waiting ranks have begun, with its line; empty if none is known."""
    for each in waiting:
        if each.last:
            line = each.last[-1][3] or (each.places[-1] if each.places else "")
            return _words(each.last[-1]) + (f" ({line})" if line else "")
    return ""


def _parting(heard: Sequence[Testimony]) -> tuple[tuple[int, ...], str] | None:
    """Where ranks call different collectives under one number, and which ranks are fewer."""
    by_number: dict[int, dict[int, str]] = {}
    lines: dict[tuple[int, int], str] = {}
    for each in heard:
        for number, name, sizes, line in each.last:
            if name in _POINT_TO_POINT:
                continue
            # Ranks may gather or scatter different sizes.
            shown = _words((number, name, sizes, line)) if name in _SAME_SIZES else name
            by_number.setdefault(number, {})[each.rank] = shown
            lines[number, each.rank] = f" ({line})" if line else ""
    for number in sorted(by_number):
        calls = by_number[number]
        kinds = Counter(calls.values())
        if len(kinds) < 2:
            continue
        usual, _ = kinds.most_common(1)[0]
        level = len(set(kinds.values())) == 1
        ranks = tuple(rank for rank, call in calls.items() if level or call != usual)
        said = "; ".join(
            f"rank {rank} calls {call}{lines[number, rank]}" for rank, call in sorted(calls.items())
        )
        return ranks, f"mismatched collectives: {said}"
    return None


def _testimonies(tails: Sequence[str]) -> dict[int, Testimony]:
    found: dict[int, Testimony] = {}
    for rank, tail in enumerate(tails):
        for line in tail.splitlines():
            if line.startswith(MARK):
                try:
                    read = msgspec.json.decode(line[len(MARK) :], type=Testimony)
                except msgspec.MsgspecError:
                    continue  # Cut off, or printed by the job itself.
                if read.rank == rank:
                    found[rank] = read
    return found


def _without_marks(tail: str) -> str:
    return "\n".join(line for line in tail.splitlines() if not line.startswith(MARK)).strip()


def _last_words(tail: str) -> str:
    """What a process said of its end: C++'s exception, or Python's fatal error; else its last line.

    After these, Python lists its threads and its extension modules.
    """
    lines = [line.strip() for line in tail.splitlines()]
    for mark in ("what():", "Fatal Python error:"):
        for line in lines:
            if line.startswith(mark):
                return line[:_LONGEST]
    return lines[-1][:_LONGEST] if lines else ""


def _stage(heard: dict[int, Testimony], rank: int) -> str:
    return heard[rank].stage if rank in heard else ""


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _words(call: Collective | list[Any]) -> str:
    _, name, sizes, _ = call
    shapes = " ".join("x".join(map(str, size)) or "scalar" for size in sizes)
    return f"{name}({shapes})"
