"""One operator made of several that are independent of each other: one launch for theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tapml.compiler.opencl_merging import (
    SYMBOL,
    Part,
    local_bytes,
    merged_text,
    prologue_of,
)
from tapml.compiler.opencl_text import KernelText
from tapml.compiler.single_launch import SingleLaunch, rewritten, symbols_in
from tapml.graph.plan import CallStep, Entry, Value
from tapml_targets.dtype import dtype
from tapml_targets.expression import Expression, product, symbols_of
from tapml_targets.library import (
    Argument,
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
)
from tapml_targets.library_check import MAX_NAME

MAX_ARGUMENTS: Final = 32
"""Arguments of a merged kernel: 256 bytes of them is the least that any OpenCL device takes."""

MAX_LOCAL_BYTES: Final = 16 << 10
"""Local memory of a merged kernel: what one compiled kernel may have."""

_DIALECT: Final = "opencl-c"
_LONGEST_NAME: Final = MAX_NAME - 16


@dataclass(frozen=True)
class Use:
    """A call site of an operator that is one launch.

    Attributes
    ----------
    single
        The operator.
    values
        Its arguments.
    launch
        Its launch in the symbols of the entry.
    """

    single: SingleLaunch
    values: tuple[Value, ...]
    launch: Launch

    @staticmethod
    def of(entry: Entry, call: CallStep, single: SingleLaunch) -> Use | None:
        """The use, or None where a symbol of the operator is nothing that the entry knows."""
        values = tuple(entry.values[name] for name in call.arguments)
        known: dict[str, Expression] = dict(call.symbols)
        for value, parameter in zip(values, single.program.parameters, strict=True):
            if len(value.shape) != len(parameter.shape):
                return None
            for extent, expression in zip(parameter.shape, value.shape, strict=True):
                if isinstance(extent, str):
                    known.setdefault(extent, expression)
        if not symbols_in(single.launch) <= known.keys():
            return None
        return Use(single, values, rewritten(single.launch, known))


@dataclass(frozen=True)
class Merged:
    """A merged operator and how its call site calls it.

    Attributes
    ----------
    name
        The names of its operators; the caller makes it unique.
    arguments, symbols
        Of the call.
    """

    name: str
    arguments: tuple[str, ...]
    symbols: tuple[tuple[str, Expression], ...]
    _program: OperatorProgram
    _launch: Launch
    _kernel: Kernel
    _module: CodeModule
    _target: str

    def library(self, name: str) -> Library:
        """The operator's Library under a name of the caller's."""
        program = replace(
            self._program, name=name, statements=(replace(self._launch, kernel=name),)
        )
        return Library(
            target=self._target,
            modules=(self._module,),
            kernels={name: replace(self._kernel, name=name)},
            operators={name: program},
        )


def merged_operator(entry: Entry, uses: Sequence[Use]) -> Merged | None:
    """Put uses together whose launches are independent of each other.

    Returns
    -------
    Merged or None
        None where one kernel cannot do it: the grids differ along more than one axis, the texts
        contradict each other, there are too many arguments or too much local memory, or two
        arguments overlap without being the same.
    """
    uses = _by_text(uses)
    texts = list(dict.fromkeys(use.single.text for use in uses))
    prologue = prologue_of(texts)
    axis = _axis([use.launch for use in uses])
    shared = local_bytes(texts)
    if prologue is None or axis is None or shared > MAX_LOCAL_BYTES:
        return None
    arguments = _Arguments()
    columns = [[arguments.place(use, index) for index in range(len(use.launch.arguments))]
               for use in uses]  # fmt: skip
    ends = _ends(uses, axis, arguments)
    name = " + ".join(use.single.program.name for use in uses)
    if (
        len(arguments.given) > MAX_ARGUMENTS
        or len(name) > _LONGEST_NAME
        or not arguments.all_apart()
    ):
        return None
    parts = [
        Part(use.single.program.name, use.single.text, tuple(column), end)
        for use, column, end in zip(uses, columns, ends, strict=True)
    ]
    first = uses[0]
    total = _sum([use.launch.grid[axis] for use in uses])
    grid = tuple(total if n == axis else extent for n, extent in enumerate(first.launch.grid))
    launch = Launch(name, tuple(arguments.given), grid, first.launch.block)  # type: ignore[arg-type]
    symbols = _lacking(arguments.parameters, launch)
    features = sorted({feature for use in uses for feature in use.single.kernel.features})
    return Merged(
        name=name,
        arguments=tuple(value.name for value in arguments.values),
        symbols=tuple((symbol, symbol) for symbol in symbols),
        _program=OperatorProgram(name, tuple(arguments.parameters), (), symbols=symbols),
        _launch=launch,
        _kernel=Kernel(
            name=name,
            symbol=SYMBOL,
            module=0,
            threads_per_block=first.single.kernel.threads_per_block,
            shared_memory_bytes=shared,
            features=tuple(features),
        ),
        _module=CodeModule(
            _DIALECT,
            merged_text(parts, arguments.declared, axis, prologue).encode(),
            first.single.options,
        ),
        _target=first.single.target,
    )


@dataclass
class _Arguments:
    """Arguments of the merged kernel, those that several parts read once.

    A driver may copy a window that starts at an odd place, and refuses one that overlaps another
    argument: what is one tensor is one argument, and no two others overlap.
    """

    values: list[Value] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    given: list[Argument] = field(default_factory=list)
    declared: list[str] = field(default_factory=list)
    _known: dict[object, int] = field(default_factory=dict)

    def place(self, use: Use, index: int) -> int:
        """The merged kernel's parameter for one of a use's arguments."""
        argument = use.launch.arguments[index]
        declared = use.single.text.parameters[index].declared
        if not isinstance(argument, BufferArgument):
            return self.add(argument, declared)
        names = [each.name for each in use.single.program.parameters]
        position = names.index(argument.name)
        role = use.single.program.parameters[position].role
        name = self._parameter(use.values[position], role)
        buffer = replace(argument, name=name)
        return self.add(buffer, declared)

    def add(self, argument: Argument, declared: str) -> int:
        """The number of an argument, a new one unless it is there."""
        key = (argument, declared)
        if key not in self._known:
            self._known[key] = len(self.given)
            self.given.append(argument)
            self.declared.append(declared)
        return self._known[key]

    def all_apart(self) -> bool:
        """Whether no two buffers given overlap, as far as is known."""
        windows = self.values
        names = [each.name for each in self.given if isinstance(each, BufferArgument)]
        if len(set(names)) < len(names):
            return False
        return all(
            _apart(one, other)
            for at, one in enumerate(windows)
            for other in windows[:at]
            if one.storage == other.storage
        )

    def _parameter(self, value: Value, role: str) -> str:
        for known, parameter in zip(self.values, self.parameters, strict=True):
            if role == parameter.role == "input" and _same(known, value):
                return parameter.name
        name = str(len(self.parameters))
        self.values.append(value)
        self.parameters.append(Parameter(name, value.shape, value.dtype, role))  # type: ignore[arg-type]
        return name


def _by_text(uses: Sequence[Use]) -> list[Use]:
    """Uses of one kernel next to each other."""
    found: dict[KernelText, list[Use]] = {}
    for use in uses:
        found.setdefault(use.single.text, []).append(use)
    return [use for each in found.values() for use in each]


def _axis(launches: Sequence[Launch]) -> int | None:
    """The axis along which the groups are shared out: the others' extents are equal."""
    for axis in (0, 1, 2):
        others = {tuple(e for n, e in enumerate(each.grid) if n != axis) for each in launches}
        if len(others) == 1:
            return axis
    return None


def _ends(uses: Sequence[Use], axis: int, arguments: _Arguments) -> list[int | str | None]:
    """Where each part's groups end; sums that are not known yet are passed as scalars."""
    ends: list[int | str | None] = []
    for count in range(1, len(uses)):
        end = _sum([use.launch.grid[axis] for use in uses[:count]])
        if isinstance(end, int):
            ends.append(end)
        else:
            scalar = ScalarArgument(end, "int64")
            ends.append(str(arguments.add(scalar, "const long")))
    return [*ends, None]


def _sum(extents: Sequence[Expression]) -> Expression:
    known = sum(each for each in extents if isinstance(each, int))
    result: Expression = known
    for extent in extents:
        if not isinstance(extent, int):
            result = extent if result == 0 else ("add", result, extent)
    return result


def _nbytes(value: Value) -> Expression:
    return product((*value.shape, dtype(value.dtype).nbytes(1)))


def _same(one: Value, other: Value) -> bool:
    """Whether two values are the same bytes in the same dtype."""
    return (one.storage, one.byte_offset, one.dtype, _nbytes(one)) == (
        other.storage,
        other.byte_offset,
        other.dtype,
        _nbytes(other),
    )


def _apart(one: Value, other: Value) -> bool:
    """Whether two windows on one storage are known to have no byte in common."""
    return any(
        isinstance(end := _sum([first.byte_offset, _nbytes(first)]), int)
        and isinstance(then.byte_offset, int)
        and end <= then.byte_offset
        for first, then in ((one, other), (other, one))
    )


def _lacking(parameters: Sequence[Parameter], launch: Launch) -> tuple[str, ...]:
    """Symbols that no parameter's shape gives."""
    shapes = [extent for each in parameters for extent in each.shape]
    read = symbols_in(launch).union(*map(symbols_of, shapes))
    return tuple(sorted(read - {extent for extent in shapes if isinstance(extent, str)}))
