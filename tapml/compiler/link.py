"""Links Libraries into one, and turns a plan's entries into single calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from msgspec import structs

from tapml.compiler.entry_program import entry_program
from tapml.plan.graph_plan import GraphPlan
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
    """Link Libraries of one target.

    Modules with equal code are stored once. A kernel with a conflicting name gets its operator's
    name as a prefix, and a number if that conflicts too.

    Raises
    ------
    InputError
        If there is no Library, their targets differ, or two define an operator or entry
        differently.
    """
    linker: _Linker | None = None
    for library in libraries:
        linker = linker or _Linker(library.target)
        linker.add(library)
    if linker is None:
        raise InputError("nothing to link: expected at least one Library")
    return linker.result()


def link_entries(plan: GraphPlan, libraries: Mapping[str, Library]) -> Library:
    """Link all operators of a plan into one Library, with one entry program per entry.

    An entry's parameters are, in order: its inputs, its outputs, each state tensor before the run,
    each state tensor after it, and the weights it reads, under the names ``input:<value>``,
    ``output:<value>``, ``state:<name>``, ``next:<name>`` and ``weight:<name>``. A state tensor that
    the entry does not write has no ``next:``. A written one is fully written to ``next:``, so the
    caller swaps the two buffers after each run.

    Parameters
    ----------
    plan
        The complete model.
    libraries
        The compiled Library of every operator that the entries call, by the operator's name.

    Raises
    ------
    CompileError
        If an operator is missing, or an entry returns a tensor that none of its operators writes.
    """
    needed = {call.operator for entry in plan.entries.values() for call in entry.calls}
    missing = sorted(needed - libraries.keys())
    if missing:
        raise CompileError(
            f"plan {plan.name!r} cannot run on the target alone: no Library for "
            f"{', '.join(missing)}"
        )
    linked = link(libraries[name] for name in sorted(needed))
    entries = {name: entry_program(plan, entry) for name, entry in plan.entries.items()}
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
        """Add a Library."""
        if library.target != self._target:
            raise InputError(
                f"Libraries for {self._target!r} and {library.target!r} cannot be linked"
            )
        modules = [self._modules.setdefault(m, len(self._modules)) for m in library.modules]
        names: dict[str, str] = {}
        for operator in library.operators.values():
            program = structs.replace(
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
        """The Library of everything added."""
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
            return structs.replace(statement, body=tuple(body))
        if isinstance(statement, Condition):
            then, otherwise = (
                tuple(self._renamed(s, operator, library, modules, names) for s in branch)
                for branch in (statement.then, statement.otherwise)
            )
            return structs.replace(statement, then=then, otherwise=otherwise)
        if isinstance(statement, Launch):
            if statement.kernel not in names:
                kernel = library.kernels[statement.kernel]
                moved = structs.replace(kernel, module=modules[kernel.module])
                names[statement.kernel] = self._place(moved, operator)
            return structs.replace(statement, kernel=names[statement.kernel])
        return statement

    def _place(self, kernel: Kernel, operator: str) -> str:
        candidate, count = kernel.name, 0
        while True:
            placed = structs.replace(kernel, name=candidate)
            if self._kernels.setdefault(candidate, placed) == placed:
                return candidate
            candidate = f"{operator}/{kernel.name}" + (f"#{count}" if count else "")
            count += 1
