"""From a call with concrete shapes to the flat list of launches it means.

Pure: no driver, no memory. A call's memory is numbered in *slots*: first the tensors the caller
passes, in parameter order, then the workspaces and the intermediates. A device then binds memory to
slots and launches in order. Golden vectors compare the plans of evaluators in other languages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tapml_targets.driver import ScalarUse
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression, bind_shape, evaluate, render
from tapml_targets.library import (
    Bind,
    BufferArgument,
    Condition,
    EntryProgram,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    Parameter,
    ScalarArgument,
    Statement,
    TensorArgument,
)

MAX_STATEMENTS: Final = 1 << 18
"""Maximum number of statements of one call; it stops an endless host loop."""

_MAX_BYTES: Final = 1 << 48
_MAX_EXTENT: Final = (1 << 63) - 1
# The largest number of each kind of float, and the smallest that an evaluator has to know.
_LARGEST: Final = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "float32": float.fromhex("0x1.fffffep127"),
    "float64": float.fromhex("0x1.fffffffffffffp1023"),
}
_SMALLEST: Final = 2.0**-1022


@dataclass(frozen=True)
class TensorShape:
    """A tensor without its memory."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes the elements take."""
        elements = 1
        for extent in self.shape:
            elements *= extent
        return dtype(self.dtype).nbytes(elements)


@dataclass(frozen=True)
class WorkspaceSlot:
    """Memory that lives for the call. Slots with one `shared` number are never alive together."""

    name: str
    nbytes: int
    shared: int


@dataclass(frozen=True)
class BufferSlot:
    """A pointer into a slot: `nbytes` from `byte_offset` are the kernel's to use."""

    slot: int
    byte_offset: int
    nbytes: int


@dataclass(frozen=True)
class TensorSlot:
    """A tensor on a slot, with shape and dtype."""

    slot: int
    byte_offset: int
    shape: tuple[int, ...]
    dtype: str


PlannedArgument: TypeAlias = BufferSlot | TensorSlot | ScalarUse
Extents: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class PlannedLaunch:
    """One kernel launch; `grid` counts blocks, `block` counts threads, as (x, y, z).

    `step` is the index of the entry's call it belongs to, 0 for an operator called by itself.
    """

    kernel: str
    arguments: tuple[PlannedArgument, ...]
    grid: Extents
    block: Extents
    step: int
    dynamic_shared_bytes: int = 0


@dataclass(frozen=True)
class CallPlan:
    """All launches of one call. Slot ``len(tensors) + i`` is ``workspaces[i]``."""

    tensors: tuple[TensorShape, ...]
    workspaces: tuple[WorkspaceSlot, ...]
    launches: tuple[PlannedLaunch, ...]


@dataclass(frozen=True)
class _Window:
    slot: int
    byte_offset: int
    tensor: TensorShape


def plan_call(
    library: Library, name: str, tensors: Sequence[TensorShape], symbols: Mapping[str, int]
) -> CallPlan:
    """Work out what calling the operator or entry `name` launches.

    Parameters
    ----------
    library
        A Library that passed :func:`tapml_targets.library_check.check_library`.
    name
        Name of an entry or an operator.
    tensors
        One per parameter, in order.
    symbols
        The integers that no shape gives.

    Raises
    ------
    InputError
        If the name is unknown, or a count, shape, dtype or symbol does not match the parameters.
        The message names the operator, the parameter, what was expected and what came.
    """
    planner = _Planner(library)
    operator = library.operators.get(name)
    if operator is not None:
        planner.operator(operator, _caller_windows(operator, tensors), dict(symbols), 0)
    elif name in library.entries:
        planner.entry(library.entries[name], tensors, dict(symbols))
    else:
        known = ", ".join(sorted((*library.operators, *library.entries))) or "nothing"
        raise InputError(f"this Library has no operator or entry {name!r}; it has {known}")
    return CallPlan(tuple(tensors), tuple(planner.workspaces), tuple(planner.launches))


def _caller_windows(
    program: OperatorProgram | EntryProgram, tensors: Sequence[TensorShape]
) -> list[_Window]:
    if len(tensors) != len(program.parameters):
        names = ", ".join(f"{p.name} ({p.role})" for p in program.parameters)
        raise InputError(
            f"{program.name}: expected {len(program.parameters)} tensors, got {len(tensors)}; "
            f"in order they are {names}"
        )
    return [_Window(slot, 0, tensor) for slot, tensor in enumerate(tensors)]


def bind_parameters(
    name: str,
    parameters: Sequence[Parameter],
    tensors: Sequence[TensorShape],
    symbols: dict[str, int],
    expected: Sequence[str],
) -> None:
    """Match tensors against parameters and add the symbols their shapes give to `symbols`.

    `expected` names the symbols that must have a value already.
    """
    for symbol in expected:
        if symbol not in symbols:
            raise InputError(f"{name}: no value given for its symbol {symbol!r}")
    if len(symbols) > len(expected):
        unknown = sorted(symbols.keys() - set(expected))[0]
        known = ", ".join(expected) or "none"
        raise InputError(f"{name}: it takes no symbol {unknown!r}; its symbols: {known}")
    late = False
    for parameter, tensor in zip(parameters, tensors, strict=True):
        what = f"{name}: parameter {parameter.name!r}"
        if tensor.dtype != parameter.dtype:
            raise InputError(f"{what}: expected dtype {parameter.dtype}, got {tensor.dtype}")
        if tensor.shape and min(tensor.shape) < 0:
            raise InputError(f"{what}: negative extent in shape {tensor.shape}")
        bind_shape(parameter.shape, tensor.shape, symbols, what)
        late = late or any(isinstance(extent, tuple) for extent in parameter.shape)
    if late:
        # A compound extent may read symbols that only a later parameter gives.
        for parameter, tensor in zip(parameters, tensors, strict=True):
            bind_shape(
                parameter.shape, tensor.shape, symbols, f"{name}: parameter {parameter.name!r}"
            )


class _Planner:
    """Collects slots and launches while it walks statements."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.workspaces: list[WorkspaceSlot] = []
        self.launches: list[PlannedLaunch] = []
        self.slots = 0
        self.statements = 0

    def workspace(
        self, name: str, size: Expression, symbols: Mapping[str, int], shared: int
    ) -> _Window:
        nbytes = evaluate(size, symbols)
        if not 0 <= nbytes <= _MAX_BYTES:
            raise InputError(f"workspace {name!r}: {render(size)} gives {nbytes} bytes")
        self.workspaces.append(WorkspaceSlot(name, nbytes, shared))
        window = _Window(self.slots, 0, TensorShape((nbytes,), "uint8"))
        self.slots += 1
        return window

    def operator(
        self,
        operator: OperatorProgram,
        windows: Sequence[_Window],
        symbols: dict[str, int],
        step: int,
        shared: int = 0,
    ) -> None:
        name = operator.name
        tensors = [window.tensor for window in windows]
        bind_parameters(name, operator.parameters, tensors, symbols, operator.symbols)
        self.slots = self.slots or len(windows)
        known = {p.name: w for p, w in zip(operator.parameters, windows, strict=True)}
        for index, workspace in enumerate(operator.workspaces):
            known[workspace.name] = self.workspace(
                workspace.name, workspace.nbytes, symbols, shared + index
            )
        self.run(operator.statements, symbols, known, name, step)

    def entry(
        self, entry: EntryProgram, tensors: Sequence[TensorShape], symbols: dict[str, int]
    ) -> None:
        storages = {
            parameter.name: window
            for parameter, window in zip(
                entry.parameters, _caller_windows(entry, tensors), strict=True
            )
        }
        bind_parameters(entry.name, entry.parameters, tensors, symbols, entry.symbols)
        self.slots = len(tensors)
        for index, storage in enumerate(entry.storages):
            storages[storage.name] = self.workspace(storage.name, storage.nbytes, symbols, index)
        values = {}
        for value in entry.values:
            base = storages[value.storage]
            window = _Window(
                base.slot,
                evaluate(value.byte_offset, symbols),
                TensorShape(
                    tuple(evaluate(extent, symbols) for extent in value.shape), value.dtype
                ),
            )
            end = window.byte_offset + window.tensor.nbytes
            if not 0 <= window.byte_offset <= end <= base.tensor.nbytes:
                raise InputError(
                    f"{entry.name}: value {value.name!r} takes bytes {window.byte_offset} to "
                    f"{end} of {value.storage!r}, which has {base.tensor.nbytes}"
                )
            values[value.name] = window
        for step, call in enumerate(entry.calls):
            self.operator(
                self.library.operators[call.operator],
                [values[argument] for argument in call.arguments],
                {symbol: evaluate(expression, symbols) for symbol, expression in call.symbols},
                step,
                len(entry.storages),
            )

    def run(
        self,
        statements: Sequence[Statement],
        symbols: dict[str, int],
        known: Mapping[str, _Window],
        name: str,
        step: int,
    ) -> None:
        for statement in statements:
            self.count(name)
            match statement:
                case Launch():
                    self.launch(statement, symbols, known, name, step)
                case Loop(symbol, start, extent, body):
                    first = evaluate(start, symbols)
                    inner = dict(symbols)
                    for value in range(first, first + max(0, evaluate(extent, symbols))):
                        self.count(name)
                        inner[symbol] = value
                        self.run(body, dict(inner), known, name, step)
                case Condition(condition, then, otherwise):
                    branch = then if evaluate(condition, symbols) else otherwise
                    self.run(branch, dict(symbols), known, name, step)
                case Bind(symbol, value):
                    bound = evaluate(value, symbols)
                    if not -_MAX_EXTENT <= bound <= _MAX_EXTENT:
                        # A chain of squares would otherwise fill the memory with one number.
                        raise InputError(f"{name}: {symbol!r} = {render(value)} exceeds 64 bits")
                    symbols[symbol] = bound

    def count(self, name: str) -> None:
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            raise InputError(f"{name}: one call would take more than {MAX_STATEMENTS} statements")

    def launch(
        self,
        launch: Launch,
        symbols: Mapping[str, int],
        known: Mapping[str, _Window],
        name: str,
        step: int,
    ) -> None:
        grid = self.extents(launch.grid, symbols, name, launch.kernel)
        block = self.extents(launch.block, symbols, name, launch.kernel)
        if 0 in grid or 0 in block:
            return
        arguments: list[PlannedArgument] = []
        for argument in launch.arguments:
            match argument:
                case BufferArgument():
                    where = f"{name}: kernel {launch.kernel!r}"
                    arguments.append(_buffer_slot(argument, symbols, known, where))
                case TensorArgument(target):
                    window = known[target]
                    arguments.append(
                        TensorSlot(
                            window.slot,
                            window.byte_offset,
                            window.tensor.shape,
                            window.tensor.dtype,
                        )
                    )
                case ScalarArgument():
                    where = f"{name}: kernel {launch.kernel!r}"
                    arguments.append(_scalar(argument, symbols, where))
        shared = evaluate(launch.dynamic_shared_bytes, symbols)
        if not 0 <= shared <= _MAX_BYTES:
            raise InputError(f"{name}: kernel {launch.kernel!r}: {shared} bytes of shared memory")
        self.launches.append(
            PlannedLaunch(launch.kernel, tuple(arguments), grid, block, step, shared)
        )

    @staticmethod
    def extents(
        expressions: tuple[Expression, Expression, Expression],
        symbols: Mapping[str, int],
        name: str,
        kernel: str,
    ) -> Extents:
        x, y, z = (evaluate(expression, symbols) for expression in expressions)
        if min(x, y, z) < 0 or max(x, y, z) > _MAX_EXTENT:
            raise InputError(f"{name}: kernel {kernel!r}: extents {(x, y, z)} cannot be launched")
        return x, y, z


def _buffer_slot(
    argument: BufferArgument, symbols: Mapping[str, int], known: Mapping[str, _Window], where: str
) -> BufferSlot:
    window = known[argument.name]
    start, whole = evaluate(argument.byte_offset, symbols), window.tensor.nbytes
    if not 0 <= start <= whole:
        raise InputError(f"{where} starts at byte {start} of {argument.name!r}, which has {whole}")
    nbytes = whole - start if argument.nbytes is None else evaluate(argument.nbytes, symbols)
    if not 0 <= nbytes <= whole - start:
        end = start + nbytes
        raise InputError(
            f"{where} takes bytes {start} to {end} of {argument.name!r}, which has {whole}"
        )
    return BufferSlot(window.slot, window.byte_offset + start, nbytes)


def _scalar(argument: ScalarArgument, symbols: Mapping[str, int], where: str) -> ScalarUse:
    value = evaluate(argument.value, symbols)
    if argument.divisor == 1:
        check_scalar(value, argument.dtype, where)
        return ScalarUse(value, argument.dtype)
    divisor = evaluate(argument.divisor, symbols)
    try:
        # Zero has no sign.
        quotient = value / divisor or 0.0
    except (ZeroDivisionError, OverflowError):
        quotient = math.inf
    size = abs(quotient)
    if size > _LARGEST[argument.dtype] or (value and size < _SMALLEST):
        raise InputError(
            f"{where}: the scalar {render(argument.value)} / {render(argument.divisor)} does not "
            f"fit {argument.dtype}"
        )
    return ScalarUse(quotient, argument.dtype)


def check_scalar(value: int, name: str, what: str) -> None:
    """Raise InputError if the integer `value` does not fit the dtype called `name`."""
    if name.startswith("int"):
        bound = 1 << (dtype(name).bits - 1)
        low, high = -bound, bound
    elif name.startswith("uint"):
        low, high = 0, 1 << dtype(name).bits
    else:
        low, high = (0, 2) if name == "bool" else (-(1 << 53), (1 << 53) + 1)
    if not low <= value < high:
        raise InputError(f"{what}: the scalar {value} does not fit {name}")
