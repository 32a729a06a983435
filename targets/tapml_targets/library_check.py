"""What must hold within a Library before it is packed, accepted or loaded.

References exist, names are plain, every symbol an expression reads has a value, and counts and
nesting stay within bounds, so that the code that plans a call needs no such checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Final, get_args

from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.expression import Expression, from_wire, symbols_of
from tapml_targets.library import (
    DYNAMIC_SHARED_MEMORY,
    Bind,
    BufferArgument,
    Condition,
    EntryProgram,
    Kernel,
    Launch,
    Library,
    Loop,
    ModuleKind,
    OperatorProgram,
    Parameter,
    ScalarArgument,
    Statement,
    TensorArgument,
)

MAX_NAME: Final = 512
MAX_MODULES: Final = 4096
MAX_OPTIONS: Final = 16
MAX_KERNELS: Final = 65536
MAX_OPERATORS: Final = 65536
MAX_ENTRIES: Final = 1024
MAX_RANK: Final = 16
MAX_PARAMETERS: Final = 65536
MAX_NESTING: Final = 16
MAX_ITEMS: Final = 1 << 20

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_OPTION: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_ROLES: Final = frozenset(("input", "output", "inout"))
_KINDS: Final = frozenset(get_args(ModuleKind))
_FLOATS: Final = ("float", "bfloat")


def check_library(library: Library) -> None:
    """Check that `library` is complete and consistent in itself.

    Raises
    ------
    ProtocolError
        At the first fault; the message names the operator, entry or kernel and what is wrong.
    """
    _name(library.target, "target")
    _count(library.modules, MAX_MODULES, "modules")
    _count(library.kernels, MAX_KERNELS, "kernels")
    _count(library.operators, MAX_OPERATORS, "operators")
    _count(library.entries, MAX_ENTRIES, "entries")
    for index, module in enumerate(library.modules):
        _name(module.dialect, f"module {index}: dialect")
        if module.kind not in _KINDS:
            raise ProtocolError(f"module {index}: its kind must be source, portable or machine")
        if module.architecture:
            _name(module.architecture, f"module {index}: architecture")
        _check_options(module.options, f"module {index}: build options")
    for name, kernel in library.kernels.items():
        _keyed(name, kernel.name, "kernel")
        _check_kernel(kernel, len(library.modules))
    for name, operator in library.operators.items():
        _keyed(name, operator.name, "operator")
        _OperatorCheck(operator, library.kernels).run()
    for name, entry in library.entries.items():
        _keyed(name, entry.name, "entry")
        if name in library.operators:
            raise ProtocolError(f"entry {name!r} has the name of an operator; rename one of them")
        _check_entry(entry, library.operators)


def _check_options(options: Sequence[str], where: str) -> None:
    _count(options, MAX_OPTIONS, where)
    for option in options:
        if len(option) > MAX_NAME or not _OPTION.fullmatch(option):
            raise ProtocolError(f"{where}: {option[:80]!r} is no name like 'fast-math'")
    if list(options) != sorted(set(options)):
        raise ProtocolError(f"{where}: they must be sorted and none be there twice")


def _check_kernel(kernel: Kernel, modules: int) -> None:
    where = f"kernel {kernel.name!r}"
    if len(kernel.symbol) > MAX_NAME or not _IDENTIFIER.fullmatch(kernel.symbol):
        raise ProtocolError(f"{where}: {kernel.symbol[:80]!r} is not a function name")
    if not 0 <= kernel.module < modules:
        raise ProtocolError(f"{where}: module {kernel.module} does not exist; there are {modules}")
    if min(kernel.threads_per_block, kernel.shared_memory_bytes, kernel.subgroup_width) < 0:
        raise ProtocolError(f"{where}: threads and shared memory must not be negative")
    for feature in kernel.features:
        _name(feature, f"{where}: feature")


class _OperatorCheck:
    """Walks the statements of one operator with the symbols that are in scope."""

    def __init__(self, operator: OperatorProgram, kernels: Mapping[str, Kernel]) -> None:
        self.operator = operator
        self.where = f"operator {operator.name!r}"
        self.kernels = kernels
        self.parameters = {parameter.name for parameter in operator.parameters}
        self.workspaces = {workspace.name for workspace in operator.workspaces}

    def run(self) -> None:
        operator, where = self.operator, self.where
        symbols = check_parameters(operator.parameters, operator.symbols, where)
        _unique([*self.parameters, *(w.name for w in operator.workspaces)], where)
        for workspace in operator.workspaces:
            _name(workspace.name, f"{where}: workspace")
            _known(workspace.nbytes, symbols, f"{where}: workspace {workspace.name!r}")
        self.statements(operator.statements, set(symbols), 0)

    def statements(self, statements: Sequence[Statement], symbols: set[str], depth: int) -> None:
        if depth > MAX_NESTING:
            raise ProtocolError(f"{self.where}: nested deeper than {MAX_NESTING} statements")
        _count(statements, MAX_ITEMS, f"{self.where}: statements")
        for statement in statements:
            match statement:
                case Launch():
                    self.launch(statement, symbols)
                case Loop(symbol, start, extent, body):
                    _name(symbol, f"{self.where}: loop symbol")
                    _known(start, symbols, f"{self.where}: loop over {symbol!r}")
                    _known(extent, symbols, f"{self.where}: loop over {symbol!r}")
                    self.statements(body, symbols | {symbol}, depth + 1)
                case Condition(condition, then, otherwise):
                    _known(condition, symbols, f"{self.where}: condition")
                    self.statements(then, set(symbols), depth + 1)
                    self.statements(otherwise, set(symbols), depth + 1)
                case Bind(symbol, value):
                    _name(symbol, f"{self.where}: bound symbol")
                    _known(value, symbols, f"{self.where}: {symbol!r}")
                    symbols.add(symbol)

    def launch(self, launch: Launch, symbols: set[str]) -> None:
        where = f"{self.where}: launch of {launch.kernel!r}"
        if launch.kernel not in self.kernels:
            raise ProtocolError(f"{where}: the Library has no such kernel")
        for extent in (*launch.grid, *launch.block, launch.dynamic_shared_bytes):
            _known(extent, symbols, where)
        features = self.kernels[launch.kernel].features
        if launch.dynamic_shared_bytes != 0 and DYNAMIC_SHARED_MEMORY not in features:
            raise ProtocolError(
                f"{where}: it asks for shared memory, and its kernel lacks the feature "
                f"{DYNAMIC_SHARED_MEMORY!r}"
            )
        for argument in launch.arguments:
            match argument:
                case BufferArgument(name, byte_offset, nbytes):
                    if name not in self.parameters and name not in self.workspaces:
                        raise ProtocolError(f"{where}: no parameter or workspace {name!r}")
                    _known(byte_offset, symbols, where)
                    _known(0 if nbytes is None else nbytes, symbols, where)
                case TensorArgument(name):
                    if name not in self.parameters:
                        raise ProtocolError(f"{where}: no parameter {name!r} to pass as a tensor")
                case ScalarArgument(value, kind, divisor):
                    _dtype(kind, where)
                    _known(value, symbols, where)
                    _known(divisor, symbols, where)
                    if divisor != 1 and not kind.startswith(_FLOATS):
                        raise ProtocolError(f"{where}: a quotient is no {kind[:80]}")


def _check_entry(entry: EntryProgram, operators: dict[str, OperatorProgram]) -> None:
    where = f"entry {entry.name!r}"
    symbols = check_parameters(entry.parameters, entry.symbols, where)
    _count(entry.storages, MAX_ITEMS, f"{where}: storages")
    _count(entry.values, MAX_ITEMS, f"{where}: values")
    _count(entry.calls, MAX_ITEMS, f"{where}: calls")
    storages = [p.name for p in entry.parameters] + [s.name for s in entry.storages]
    _unique(storages, where)
    for storage in entry.storages:
        _name(storage.name, f"{where}: storage")
        _known(storage.nbytes, symbols, f"{where}: storage {storage.name!r}")
    known_storages = set(storages)
    values: set[str] = set()
    for value in entry.values:
        at = f"{where}: value {value.name[:80]!r}"
        _name(value.name, f"{where}: value")
        _dtype(value.dtype, at)
        if value.name in values:
            raise ProtocolError(f"{at} is there twice")
        if value.storage not in known_storages:
            raise ProtocolError(f"{at}: no parameter or storage {value.storage[:80]!r}")
        _count(value.shape, MAX_RANK, at)
        for expression in (value.byte_offset, *value.shape):
            _known(expression, symbols, at)
        values.add(value.name)
    for index, call in enumerate(entry.calls):
        at = f"{where}: call {index} of {call.operator[:80]!r}"
        operator = operators.get(call.operator)
        if operator is None:
            raise ProtocolError(f"{at}: the Library has no such operator")
        if len(call.arguments) != len(operator.parameters):
            raise ProtocolError(
                f"{at}: expected {len(operator.parameters)} arguments, got {len(call.arguments)}"
            )
        if not values.issuperset(call.arguments):
            missing = next(name for name in call.arguments if name not in values)
            raise ProtocolError(f"{at}: no value {missing[:80]!r}")
        given = [symbol for symbol, _ in call.symbols]
        _unique(given, at)
        if set(given) != set(operator.symbols):
            raise ProtocolError(f"{at}: expected symbols {operator.symbols}, got {tuple(given)}")
        for _, expression in call.symbols:
            _known(expression, symbols, at)


def check_parameters(
    parameters: Sequence[Parameter], symbols: Sequence[str], where: str
) -> frozenset[str]:
    """Check tensors in calling order and return the symbols that a call gives values."""
    _count(parameters, MAX_PARAMETERS, f"{where}: parameters")
    _count(symbols, MAX_PARAMETERS, f"{where}: symbols")
    _unique([parameter.name for parameter in parameters], where)
    _unique(symbols, where)
    known = set(symbols)
    for symbol in symbols:
        _name(symbol, f"{where}: symbol")
    for parameter in parameters:
        at = f"{where}: parameter {parameter.name[:80]!r}"
        _name(parameter.name, f"{where}: parameter")
        _dtype(parameter.dtype, at)
        if parameter.role not in _ROLES:
            raise ProtocolError(f"{at}: role must be input, output or inout")
        _count(parameter.shape, MAX_RANK, at)
        known.update(extent for extent in parameter.shape if isinstance(extent, str))
    for parameter in parameters:
        for extent in parameter.shape:
            _known(extent, known, f"{where}: parameter {parameter.name[:80]!r}")
    return frozenset(known)


def _name(name: str, what: str) -> None:
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise ProtocolError(
            f"{what}: expected a name of 1 to {MAX_NAME} printable characters, got {name[:80]!r}"
        )


def _keyed(key: str, name: str, what: str) -> None:
    _name(key, what)
    if key != name:
        raise ProtocolError(f"{what} {name[:80]!r} is stored under another name, {key[:80]!r}")


def _count(items: Sized, most: int, what: str) -> None:
    if (count := len(items)) > most:
        raise ProtocolError(f"{what}: at most {most} are allowed, got {count}")


def _unique(names: Sequence[str], where: str) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ProtocolError(f"{where}: the name {twice[:80]!r} is there twice")


def _dtype(name: str, where: str) -> None:
    try:
        dtype(name)
    except InputError as error:
        raise ProtocolError(f"{where}: {error}") from None


def _known(expression: Expression, symbols: Iterable[str], where: str) -> None:
    if isinstance(expression, int):
        return
    missing = symbols_of(from_wire(expression)).difference(symbols)
    if missing:
        raise ProtocolError(f"{where}: no shape or symbol gives {sorted(missing)[0][:80]!r}")
