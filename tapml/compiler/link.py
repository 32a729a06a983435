"""Many Libraries become one; a plan's entry becomes one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tapml.compiler.entry_program import entry_program
from tapml.compiler.merged_launches import MergedPlan, merge_launches
from tapml.graph.plan import GraphPlan
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import (
    CodeModule,
    Condition,
    EntryProgram,
    Kernel,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    Statement,
)


def link(libraries: Iterable[Library]) -> Library:
    """Put Libraries of one target together.

    Modules with equal code are kept once; a kernel whose name is taken gets its operator's name in
    front, and a number where that is taken too.

    Raises
    ------
    InputError
        If there is no Library, they are for different targets, or two define one operator or entry
        differently.
    """
    linker: _Linker | None = None
    for library in libraries:
        linker = linker or _Linker(library.target)
        linker.add(library)
    if linker is None:
        raise InputError("nothing to link: expected at least one Library")
    return linker.result()


def link_entries(
    plan: GraphPlan, libraries: Mapping[str, Library], *, merge: bool = False
) -> Library:
    """One Library with all operators of a plan and one entry program per entry.

    An entry's parameters are, in order: its inputs, its outputs, each state tensor before the run,
    each state tensor after it, and the weights it reads, under the names ``input:<value>``,
    ``output:<value>``, ``state:<name>``, ``next:<name>`` and ``weight:<name>``. A state tensor that
    the entry leaves alone has no ``next:``; a written one is written whole to ``next:``, so the
    caller exchanges the two buffers after each run.

    Parameters
    ----------
    plan
        The whole model.
    libraries
        The compiled Library of each operator by the operator's name. Every operator that the plan's
        entries call must be there.

    Raises
    ------
    CompileError
        If an operator is missing, or an entry returns a tensor that no operator of it writes.
    """
    needed = {call.operator for entry in plan.entries.values() for call in entry.calls}
    missing = sorted(needed - libraries.keys())
    if missing:
        raise CompileError(
            f"plan {plan.name!r} cannot run on the target alone: no Library for "
            f"{', '.join(missing)}"
        )
    merged = MergedPlan(plan.entries, libraries)
    if merge:
        merged = merge_launches(plan, libraries)
    needed = {call.operator for entry in merged.entries.values() for call in entry.calls}
    linked = link(merged.libraries[name] for name in sorted(needed))
    entries = {name: entry_program(plan, entry) for name, entry in merged.entries.items()}
    return replace(linked, entries=entries)


class _Linker:
    def __init__(self, target: str) -> None:
        self._target = target
        self._modules: dict[CodeModule, int] = {}
        self._kernels: dict[str, Kernel] = {}
        self._operators: dict[str, OperatorProgram] = {}
        self._entries: dict[str, EntryProgram] = {}
        self._metadata: dict[str, str] = {}

    def add(self, library: Library) -> None:
        """Take a Library in."""
        if library.target != self._target:
            raise InputError(
                f"Libraries for {self._target!r} and {library.target!r} cannot be linked"
            )
        modules = [self._modules.setdefault(m, len(self._modules)) for m in library.modules]
        names: dict[str, str] = {}
        for operator in library.operators.values():
            program = replace(
                operator,
                statements=tuple(
                    self._renamed(s, operator.name, library, modules, names)
                    for s in operator.statements
                ),
            )
            if self._operators.setdefault(operator.name, program) != program:
                raise InputError(f"two Libraries define operator {operator.name!r} differently")
        for name, entry in library.entries.items():
            if self._entries.setdefault(name, entry) != entry:
                raise InputError(f"two Libraries define entry {name!r} differently")
        for key, text in library.metadata.items():
            self._metadata.setdefault(key, text)

    def result(self) -> Library:
        """The Library of everything taken in."""
        return Library(
            target=self._target,
            modules=tuple(self._modules),
            kernels=self._kernels,
            operators=self._operators,
            entries=self._entries,
            metadata=self._metadata,
        )

    def _renamed(
        self,
        statement: Statement,
        operator: str,
        library: Library,
        modules: list[int],
        names: dict[str, str],
    ) -> Statement:
        if isinstance(statement, Loop):
            body = (self._renamed(s, operator, library, modules, names) for s in statement.body)
            return replace(statement, body=tuple(body))
        if isinstance(statement, Condition):
            then, otherwise = (
                tuple(self._renamed(s, operator, library, modules, names) for s in branch)
                for branch in (statement.then, statement.otherwise)
            )
            return replace(statement, then=then, otherwise=otherwise)
        if isinstance(statement, Launch):
            if statement.kernel not in names:
                kernel = library.kernels[statement.kernel]
                moved = replace(kernel, module=modules[kernel.module])
                names[statement.kernel] = self._place(moved, operator)
            return replace(statement, kernel=names[statement.kernel])
        return statement

    def _place(self, kernel: Kernel, operator: str) -> str:
        candidate, count = kernel.name, 0
        while True:
            placed = replace(kernel, name=candidate)
            if self._kernels.setdefault(candidate, placed) == placed:
                return candidate
            candidate = f"{operator}/{kernel.name}" + (f"#{count}" if count else "")
            count += 1
