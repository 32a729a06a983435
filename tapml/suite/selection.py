"""Selects the call sites and runs to carve: the user's filters, then the byte budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from weakref import WeakKeyDictionary

from tapml.execute.program import Program
from tapml.plan.graph_plan import CallStep, GraphPlan
from tapml.suite.layout import KeptRun, keep_run
from tapml.suite.permutation import PermutationFinder
from tapml_targets.errors import InputError


@dataclass(frozen=True)
class Filters:
    """Filters on tests; an empty field matches everything.

    Attributes
    ----------
    operators
        Patterns of operator names, with ``*`` and ``?``.
    layers
        Indices of decoder layers; call sites outside layers have none.
    steps
        Runs of a prompt: 0 is the prefill, then one per generated token.
    entries
        ``prefill``, ``decode``.
    """

    operators: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    entries: tuple[str, ...] = ()

    def check(self, plan: GraphPlan) -> None:
        """Check the filters against a plan.

        Raises
        ------
        InputError
            If one of them can never match: a pattern without an operator, a layer or entry that
            does not exist, a negative step.
        """
        for pattern in self.operators:
            if not any(fnmatchcase(name, pattern) for name in plan.operators):
                raise InputError(
                    f"no operator matches {pattern!r}; operators: {', '.join(plan.operators)}"
                )
        layers = {
            call.layer
            for entry in plan.entries.values()
            for call in entry.calls
            if call.layer is not None
        }
        for layer in self.layers:
            if layer not in layers:
                known = f"0 to {max(layers)}" if layers else "none"
                raise InputError(f"no layer {layer}; layers: {known}")
        for entry in self.entries:
            if entry not in plan.entries:
                raise InputError(f"no entry {entry!r}; entries: {', '.join(plan.entries)}")
        for step in self.steps:
            if step < 0:
                raise InputError(f"step {step}: expected at least 0 (the prefill)")

    def run(self, entry: str, step: int) -> bool:
        """Whether any call site of a run may match."""
        return (not self.entries or entry in self.entries) and (
            not self.steps or step in self.steps
        )

    def site(self, operator: str, layer: int | None) -> bool:
        """Whether a call site matches, in a run that does."""
        return (not self.layers or layer in self.layers) and (
            not self.operators or any(fnmatchcase(operator, pattern) for pattern in self.operators)
        )

    def call(self, step: CallStep) -> bool:
        """Whether a step of a plan matches, in a run that does."""
        return self.site(step.operator, step.layer)


# Programs are planned once and carved often; the executor drops those it no longer needs.
_KEPT: WeakKeyDictionary[Program, dict[tuple[int, ...], KeptRun]] = WeakKeyDictionary()


@dataclass
class Selector:
    """Decides, run by run, which tests to keep.

    Under a budget it samples the first call site of every operator in every entry, so that every
    operator has a test, and then all other call sites in execution order. Space for the first call
    sites of entries that have not run yet is reserved.

    Attributes
    ----------
    filters
        The user's filters.
    budget_bytes
        Limit on the suite's tensor bytes, excluding weights; None for none.
    permutations
        Finds tensors that are permutations of others.
    expected
        A program of each entry that will run, by entry.
    covered
        (entry, operator) pairs that have a test.
    exhausted
        Whether the budget was too small for the last run.
    left_out_tests
        Tests that match the filters but exceed the budget, by (entry, operator).
    """

    filters: Filters
    budget_bytes: int | None
    permutations: PermutationFinder
    expected: Mapping[str, Program] = field(default_factory=dict)
    covered: set[tuple[str, str]] = field(default_factory=set)
    exhausted: bool = False
    left_out_tests: Counter[tuple[str, str]] = field(default_factory=Counter)
    _full: dict[Program, KeptRun | None] = field(default_factory=dict)

    def fits(self, program: Program, step: int, stored_bytes: int) -> bool:
        """Whether all matching tests of a run certainly fit; arguments as of `choose`."""
        entry = program.bound.entry.name
        if self.budget_bytes is None or not self.filters.run(entry, step):
            return True
        kept = self._keep(program, self._wanted(program))
        room = self.budget_bytes - stored_bytes - self._reserved(entry)
        return kept is None or kept.nbytes <= room

    def choose(self, program: Program, step: int, stored_bytes: int) -> KeptRun | None:
        """The tests to keep of the next run; None for none.

        Parameters
        ----------
        program
            The run's program.
        step
            Run of the prompt.
        stored_bytes
            Bytes stored or in flight, excluding weights.
        """
        if not self.filters.run(program.bound.entry.name, step):
            return None
        if self.budget_bytes is not None:
            return self._choose_within(program, self.budget_bytes - stored_bytes)
        if program not in self._full:
            self._full[program] = self._keep(program, self._wanted(program))
        return self._full[program]

    def left_out(self, plan: GraphPlan) -> list[str]:
        """Operators that match the filters but have no test in any entry, because of the budget."""
        if self.budget_bytes is None:
            return []
        wanted = {
            call.operator
            for entry in plan.entries.values()
            for call in entry.calls
            if self.filters.call(call)
        }
        return sorted(wanted - {operator for _, operator in self.covered})

    def _choose_within(self, program: Program, room: int) -> KeptRun | None:
        wanted = self._wanted(program)
        entry = program.bound.entry.name
        first = self._first_sites(program, wanted)
        reserved = self._reserved(entry)
        chosen: list[int] = []
        best: KeptRun | None = None
        for positions, free in ((first, room), (wanted, room - reserved)):
            best, chosen = self._grow(program, chosen, positions, free, best)
        calls = program.bound.calls
        self.covered.update((entry, calls[position].step.operator) for position in chosen)
        kept = set(chosen)
        self.left_out_tests.update(
            (entry, calls[position].step.operator) for position in wanted if position not in kept
        )
        self.exhausted = best is None
        return best

    def _reserved(self, entry: str) -> int:
        """Bytes reserved for the first call sites of entries that have not run yet."""
        reserved = 0
        for name, other in self.expected.items():
            if name != entry:
                kept = self._keep(other, self._first_sites(other, self._wanted(other)))
                reserved += 0 if kept is None else kept.nbytes
        return reserved

    def _grow(
        self,
        program: Program,
        chosen: list[int],
        positions: Iterable[int],
        room: int,
        best: KeptRun | None,
    ) -> tuple[KeptRun | None, list[int]]:
        """Add as many of `positions`, in order, as fit into `room`."""
        more = [position for position in positions if position not in chosen]
        low, high = 0, len(more)
        while low < high:
            middle = (low + high + 1) // 2
            kept = self._keep(program, (*chosen, *more[:middle]))
            if kept is not None and kept.nbytes <= room:
                low = middle
            else:
                high = middle - 1
        if low == 0:
            return best, chosen
        chosen = [*chosen, *more[:low]]
        return self._keep(program, chosen), chosen

    def _wanted(self, program: Program) -> tuple[int, ...]:
        return tuple(call.position for call in program.bound.calls if self.filters.call(call.step))

    def _first_sites(self, program: Program, wanted: Iterable[int]) -> tuple[int, ...]:
        """The first wanted call site of each operator that has none in this entry yet."""
        entry = program.bound.entry.name
        first: dict[str, int] = {}
        for position in wanted:
            operator = program.bound.calls[position].step.operator
            if (entry, operator) not in self.covered:
                first.setdefault(operator, position)
        return tuple(first.values())

    def _keep(self, program: Program, positions: Iterable[int]) -> KeptRun | None:
        chosen = tuple(sorted(positions))
        if not chosen:
            return None
        known = _KEPT.setdefault(program, {})
        if chosen not in known:
            known[chosen] = keep_run(program, chosen, self.permutations.find(program))
        return known[chosen]
