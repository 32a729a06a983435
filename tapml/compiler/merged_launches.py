"""Launches of an entry that are independent of each other, made one launch each.

A driver asks microseconds from one kernel to the next, which is more than a small kernel takes. An
entry that runs whole may have its launches rearranged (:mod:`tapml.compiler.launch_order`), and
those that come together become one kernel (:mod:`tapml.compiler.opencl_merging`): an operator of
its own, called after those it is made of. Only for what runs whole and is checked whole; operators
are validated one by one, as they were compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tapml.compiler.launch_order import Access, grouped
from tapml.compiler.merged_operator import Merged, Use, merged_operator
from tapml.compiler.single_launch import SingleLaunch, single_launch
from tapml.graph.plan import CallStep, Entry, GraphPlan
from tapml_targets.library import Library, OperatorProgram, launches

MERGING_VERSION: Final = 3
"""Counts what changes how launches are merged: what passed under another is run again."""


@dataclass(frozen=True)
class MergedPlan:
    """What is linked instead of a plan's own entries and Libraries.

    Attributes
    ----------
    entries
        With calls of merged operators.
    libraries
        Of every operator that the entries call.
    """

    entries: Mapping[str, Entry]
    libraries: Mapping[str, Library]


def merge_launches(plan: GraphPlan, libraries: Mapping[str, Library]) -> MergedPlan:
    """Merge what can be merged in every entry of a plan.

    Parameters
    ----------
    plan
        The whole model.
    libraries
        The compiled Library of each operator by its name.

    Returns
    -------
    MergedPlan
        The same entries where nothing can be merged: on another platform than OpenCL, or where no
        kernel's text is understood.
    """
    singles = {name: single_launch(library, name) for name, library in libraries.items()}
    made = _Made()
    entries = {
        name: _merged_entry(entry, libraries, singles, made) for name, entry in plan.entries.items()
    }
    used = {call.operator for entry in entries.values() for call in entry.calls}
    known = {**libraries, **made.libraries}
    return MergedPlan(entries, {name: known[name] for name in sorted(used)})


def launch_counts(library: Library) -> dict[str, int]:
    """Launches of each entry of a linked Library; one in a loop or a condition counts once."""
    counts = {
        name: sum(1 for _ in launches(program.statements))
        for name, program in library.operators.items()
    }
    return {
        name: sum(counts[call.operator] for call in entry.calls)
        for name, entry in library.entries.items()
    }


class _Made:
    """The merged operators so far: equal ones are one."""

    def __init__(self) -> None:
        self.libraries: dict[str, Library] = {}

    def place(self, merged: Merged) -> str:
        """The name of a merged operator, a new one unless there is its equal."""
        name, count = merged.name, 1
        while True:
            library = merged.library(name)
            if self.libraries.setdefault(name, library) == library:
                return name
            count += 1
            name = f"{merged.name} #{count}"


def _merged_entry(
    entry: Entry,
    libraries: Mapping[str, Library],
    singles: Mapping[str, SingleLaunch | None],
    made: _Made,
) -> Entry:
    calls = entry.calls
    uses = [
        None if (single := singles.get(call.operator)) is None else Use.of(entry, call, single)
        for call in calls
    ]

    def together(members: Sequence[int]) -> Merged | None:
        chosen = [use for index in members if (use := uses[index]) is not None]
        return merged_operator(entry, chosen) if len(chosen) == len(members) else None

    def fits(members: Sequence[int], index: int) -> bool:
        one, other = uses[members[0]], uses[index]
        if one is None or other is None or not one.single.may_join(other.single):
            return False
        return together([*members, index]) is not None

    accesses = _accesses(entry, {n: lib.operators[n] for n, lib in libraries.items()})
    steps = []
    for group in grouped(accesses, fits):
        merged = together(group) if len(group) > 1 else None
        if merged is None:
            steps += [calls[index] for index in group]
        else:
            steps.append(
                CallStep(
                    site=" + ".join(calls[index].site for index in group),
                    operator=made.place(merged),
                    arguments=merged.arguments,
                    symbols=merged.symbols,
                    origins=tuple(o for index in group for o in calls[index].origins),
                )
            )
    return replace(entry, steps=tuple(steps))


def _accesses(entry: Entry, programs: Mapping[str, OperatorProgram]) -> list[Access]:
    # A state tensor's old value may be overwritten by its new one: they count as one memory.
    one = {
        entry.values[binding.after].storage: entry.values[binding.before].storage
        for binding in entry.state
    }
    result = []
    for call in entry.calls:
        reads, writes = set(), set()
        for name, parameter in zip(call.arguments, programs[call.operator].parameters, strict=True):
            storage = entry.values[name].storage
            memory = one.get(storage, storage)
            if parameter.role != "output":
                reads.add(memory)
            if parameter.role != "input":
                writes.add(memory)
        result.append(Access(frozenset(reads), frozenset(writes)))
    return result
