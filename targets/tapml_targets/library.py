"""Library: what is uploaded to a device.

Per kernel its source or binary; per operator its parameters, workspaces and launches; entries,
each one operator or a sequence of operators with intermediates, so that a block or a whole plan is
one call. Target-only: it needs neither the model nor the compiler. The wire form is msgpack and
lives in :mod:`tapml_targets.library_format`; what a call launches is worked out in
:mod:`tapml_targets.call_plan` and run by :mod:`tapml_targets.evaluator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tapml_targets.dtype import dtype
from tapml_targets.expression import Expression

Role: TypeAlias = Literal["input", "output", "inout"]

ModuleKind: TypeAlias = Literal["source", "portable", "machine"]
"""What a module is: text for the device's own compiler; code of a virtual machine, such as SPIR-V,
that the driver translates; or code of a processor, which may do whatever its sender likes."""

DYNAMIC_SHARED_MEMORY: Final = "dynamic_shared_memory"
"""The feature of a device whose launches may ask for shared memory."""


class _Row(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the wire form holds as a list of its fields in their order, behind its tag if any."""


class Parameter(_Row, frozen=True):
    """A tensor an operator or an entry takes.

    `shape` holds one expression per dimension; `role` says whether it is read, written or both.
    """

    name: str
    shape: tuple[Expression, ...]
    dtype: str
    role: Role

    @property
    def known_bytes(self) -> int:
        """Bytes that its elements take; 0 where a symbol is in its shape."""
        elements = 1
        for extent in self.shape:
            if not isinstance(extent, int):
                return 0
            elements *= extent
        return dtype(self.dtype).nbytes(elements)


class Workspace(_Row, frozen=True):
    """Device memory that lives for one call of its operator."""

    name: str
    nbytes: Expression


class Kernel(_Row, frozen=True):
    """One device function.

    Attributes
    ----------
    name
        Its name in the Library.
    symbol
        Its name inside the module.
    module
        Index into ``Library.modules``.
    threads_per_block
        Product of the block extents it was compiled for; 0 where not fixed.
    shared_memory_bytes
        Statically allocated shared (local, workgroup) memory.
    features
        Device features it needs, e.g. ``("float16",)``.
    subgroup_width
        Threads of a subgroup (warp, wave) that it was compiled for; 0 for any number.
    """

    name: str
    symbol: str
    module: int
    threads_per_block: int = 0
    shared_memory_bytes: int = 0
    features: tuple[str, ...] = ()
    subgroup_width: int = 0


class BufferArgument(_Row, frozen=True, tag="buffer"):
    """A kernel argument that is a pointer: a parameter's or workspace's memory.

    `nbytes` bytes of it from `byte_offset`; to its end where that is None. A device may give a
    kernel less of a buffer than the buffer has.
    """

    name: str
    byte_offset: Expression = 0
    nbytes: Expression | None = None


class TensorArgument(_Row, frozen=True, tag="tensor"):
    """A kernel argument that is a whole tensor with shape and dtype (host-callable kernels)."""

    name: str


class ScalarArgument(_Row, frozen=True, tag="scalar"):
    """A kernel argument that is a number, passed as `dtype`.

    It is the integer `value`; for a dtype of floats with another `divisor` than 1, the quotient of
    the two: in float64 first, to nearest even, then in `dtype`.
    """

    value: Expression
    dtype: str
    divisor: Expression = 1


Argument: TypeAlias = BufferArgument | TensorArgument | ScalarArgument


class Launch(_Row, frozen=True, tag="launch"):
    """Run a kernel. `grid` counts blocks and `block` counts threads, as (x, y, z).

    Each block has `dynamic_shared_bytes` of shared memory beside what its kernel declares. Where
    they are not 0 the kernel has the feature ``dynamic_shared_memory``.
    """

    kernel: str
    arguments: tuple[Argument, ...]
    grid: tuple[Expression, Expression, Expression] = (1, 1, 1)
    block: tuple[Expression, Expression, Expression] = (1, 1, 1)
    dynamic_shared_bytes: Expression = 0


class Loop(_Row, frozen=True, tag="loop"):
    """Run `body` with `symbol` going from `start` up to but not including `start + extent`."""

    symbol: str
    start: Expression
    extent: Expression
    body: tuple[Statement, ...]


class Condition(_Row, frozen=True, tag="if"):
    """Run `then` where `condition` is not zero, else `otherwise`."""

    condition: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


class Bind(_Row, frozen=True, tag="bind"):
    """Give `symbol` a value for the statements that follow."""

    symbol: str
    value: Expression


Statement: TypeAlias = Launch | Loop | Condition | Bind


def launches(statements: Sequence[Statement]) -> Iterator[Launch]:
    """Every launch inside `statements`, in source order."""
    for statement in statements:
        if isinstance(statement, Launch):
            yield statement
        elif isinstance(statement, Loop):
            yield from launches(statement.body)
        elif isinstance(statement, Condition):
            yield from launches((*statement.then, *statement.otherwise))


def with_launches(
    statements: Sequence[Statement], change: Callable[[Launch], Launch]
) -> tuple[Statement, ...]:
    """The statements with every launch inside them changed."""
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Launch):
            made.append(change(statement))
        elif isinstance(statement, Loop):
            made.append(replace(statement, body=with_launches(statement.body, change)))
        elif isinstance(statement, Condition):
            then = with_launches(statement.then, change)
            otherwise = with_launches(statement.otherwise, change)
            made.append(replace(statement, then=then, otherwise=otherwise))
        else:
            made.append(statement)
    return tuple(made)


class OperatorProgram(_Row, frozen=True):
    """How one operator runs: its tensors, its workspaces, its launches.

    `symbols` are integers the caller passes because no parameter's shape gives them.
    """

    name: str
    parameters: tuple[Parameter, ...]
    statements: tuple[Statement, ...]
    workspaces: tuple[Workspace, ...] = ()
    symbols: tuple[str, ...] = ()


class EntryStorage(_Row, frozen=True):
    """Device memory for the intermediates of an entry; lives for one call."""

    name: str
    nbytes: Expression


class EntryValue(_Row, frozen=True):
    """A tensor inside an entry: a window on a parameter or an intermediate storage."""

    name: str
    storage: str
    byte_offset: Expression
    shape: tuple[Expression, ...]
    dtype: str


class EntryCall(_Row, frozen=True):
    """One step of an entry: an operator, the values it takes in parameter order, its symbols."""

    operator: str
    arguments: tuple[str, ...]
    symbols: tuple[tuple[str, Expression], ...] = ()


class EntryProgram(_Row, frozen=True):
    """A sequence of operators over parameters and intermediates: one call on the device.

    A parameter's memory is a storage under the parameter's own name.
    """

    name: str
    parameters: tuple[Parameter, ...]
    storages: tuple[EntryStorage, ...]
    values: tuple[EntryValue, ...]
    calls: tuple[EntryCall, ...]
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True)
class CodeModule:
    """Source text or binary for the platform's own compiler or loader.

    Attributes
    ----------
    dialect
        What it is: ``opencl-c``, ``elf-shared-object``, ``wgsl``, ...
    code
        Its bytes; source text is UTF-8.
    options
        Names of build options, sorted, each once. A driver knows those of its dialect
        (``fast-math``) and refuses others; what it tells its compiler for one is its own.
    kind
        What kind of code that is. A driver knows it of each of its dialects and refuses a module
        that says something else.
    architecture
        The only one that takes it (``sm_90``, ``gfx90a``, ``x86_64``); empty for any.
    """

    dialect: str
    code: bytes
    options: tuple[str, ...] = ()
    kind: ModuleKind = "source"
    architecture: str = ""


@dataclass(frozen=True)
class Library:
    """Everything a device needs to run some operators."""

    target: str
    modules: tuple[CodeModule, ...]
    kernels: dict[str, Kernel]
    operators: dict[str, OperatorProgram]
    entries: dict[str, EntryProgram] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
