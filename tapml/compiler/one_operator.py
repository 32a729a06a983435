"""Inlines an entry into one operator: the launches of its calls, in order, and its intermediates.

A replacement of an operator must be an operator, so that it can be called, replayed, linked and
packaged in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tapml_targets.dtype import dtype
from tapml_targets.errors import CompileError
from tapml_targets.expression import Expression, product, substitute
from tapml_targets.library import (
    Argument,
    Bind,
    BufferArgument,
    Condition,
    EntryCall,
    EntryProgram,
    EntryValue,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    ScalarArgument,
    Statement,
    TensorArgument,
    Workspace,
)

_Environment: TypeAlias = dict[str, Expression]


def as_operator(library: Library, entry: str) -> Library:
    """Replace an entry, and the operators it calls, by one operator of the same name.

    Raises
    ------
    CompileError
        If a kernel takes a tensor by reference instead of a buffer: only an operator's own tensors
        can be passed that way.
    """
    program = library.entries[entry]
    workspaces = [Workspace(storage.name, storage.nbytes) for storage in program.storages]
    statements: list[Statement] = []
    for number, call in enumerate(program.calls):
        inlined = _Inlined.of(program, call, library.operators[call.operator], f"{number}.")
        statements += inlined.statements
        workspaces += inlined.workspaces
    operator = OperatorProgram(
        name=program.name,
        parameters=program.parameters,
        statements=tuple(statements),
        workspaces=tuple(workspaces),
        symbols=program.symbols,
    )
    return replace(library, operators={program.name: operator}, entries={})


@dataclass(frozen=True)
class _Memory:
    """A tensor's location; `nbytes` is None if it extends to the end of its storage."""

    storage: str
    byte_offset: Expression
    nbytes: Expression | None


@dataclass
class _Inlined:
    """One call, with the meaning of its operator's names in the entry."""

    memory: dict[str, _Memory]
    prefix: str
    statements: tuple[Statement, ...] = ()
    workspaces: list[Workspace] = field(default_factory=list)

    @classmethod
    def of(
        cls, entry: EntryProgram, call: EntryCall, operator: OperatorProgram, prefix: str
    ) -> _Inlined:
        values = {value.name: value for value in entry.values}
        given = [values[name] for name in call.arguments]
        whole = {p.name for p in entry.parameters}
        environment: _Environment = dict(call.symbols)
        memory = {}
        for parameter, value in zip(operator.parameters, given, strict=True):
            memory[parameter.name] = _place(value, whole)
            for extent, actual in zip(parameter.shape, value.shape, strict=True):
                if isinstance(extent, str):
                    environment.setdefault(extent, actual)
        made = cls(memory, prefix)
        for workspace in operator.workspaces:
            name = f"{prefix}{workspace.name}"
            made.workspaces.append(Workspace(name, substitute(workspace.nbytes, environment)))
            memory[workspace.name] = _Memory(name, 0, None)
        made.statements = made._all(operator.statements, environment)
        return made

    def _all(
        self, statements: Sequence[Statement], environment: _Environment
    ) -> tuple[Statement, ...]:
        return tuple(self._statement(each, environment) for each in statements)

    def _statement(self, statement: Statement, environment: _Environment) -> Statement:
        match statement:
            case Launch(kernel, arguments, grid, block, shared):
                x, y, z = (substitute(extent, environment) for extent in grid)
                a, b, c = (substitute(extent, environment) for extent in block)
                given = tuple(self._argument(each, environment) for each in arguments)
                return Launch(kernel, given, (x, y, z), (a, b, c), substitute(shared, environment))
            case Bind(symbol, value):
                bound = substitute(value, environment)
                environment[symbol] = f"{self.prefix}{symbol}"
                return Bind(f"{self.prefix}{symbol}", bound)
            case Loop(symbol, start, extent, body):
                first, count = substitute(start, environment), substitute(extent, environment)
                own = f"{self.prefix}{symbol}"
                return Loop(own, first, count, self._all(body, {**environment, symbol: own}))
            case Condition(condition, then, otherwise):
                return Condition(
                    substitute(condition, environment),
                    self._all(then, dict(environment)),
                    self._all(otherwise, dict(environment)),
                )

    def _argument(self, argument: Argument, environment: Mapping[str, Expression]) -> Argument:
        match argument:
            case ScalarArgument(value, kind, divisor):
                below = substitute(divisor, environment)
                return ScalarArgument(substitute(value, environment), kind, below)
            case TensorArgument(name):
                raise CompileError(f"a kernel takes {name!r} as a tensor, not as a buffer")
            case BufferArgument(name, byte_offset, nbytes):
                memory, inner = self.memory[name], substitute(byte_offset, environment)
                size = None if nbytes is None else substitute(nbytes, environment)
                if size is None and memory.nbytes is not None:
                    size = memory.nbytes if inner == 0 else ("sub", memory.nbytes, inner)
                return BufferArgument(memory.storage, _sum(memory.byte_offset, inner), size)


def _place(value: EntryValue, whole: set[str]) -> _Memory:
    """A tensor's memory; parameters have their own, other tensors share a storage."""
    if value.storage in whole and value.byte_offset == 0:
        return _Memory(value.storage, 0, None)
    nbytes = product((*value.shape, dtype(value.dtype).nbytes(1)))
    return _Memory(value.storage, value.byte_offset, nbytes)


def _sum(left: Expression, right: Expression) -> Expression:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return right if left == 0 else left if right == 0 else ("add", left, right)
