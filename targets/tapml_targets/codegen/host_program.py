"""The host half of a lowered function, read as the statements of an OperatorProgram.

After TVM's ``SplitHostDevice`` the host function is a short list of kernel calls, aliases of
buffers, workspaces, loops and conditions. It is walked here and never compiled: the evaluator runs
the same statements on the device's side, where there is no TVM.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace
from tvm import tirx

from tapml_targets.codegen.expression import call_name, quotient, translate
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.dtype import dtype
from tapml_targets.errors import CompileError
from tapml_targets.expression import Expression, product, symbols_of
from tapml_targets.library import (
    DYNAMIC_SHARED_MEMORY,
    Argument,
    Bind,
    BufferArgument,
    Condition,
    Launch,
    Loop,
    OperatorProgram,
    ScalarArgument,
    Statement,
    Workspace,
)

_AXES: Final = ("x", "y", "z")
_DYNAMIC_SHARED: Final = "tirx.use_dyn_shared_memory"


class UnofferedLaunchError(CompileError):
    """A kernel is launched with more than a grid and blocks: another schedule may do without."""


@dataclass
class _Scope:
    """What the variables of the host function stand for.

    `launch` gives the expression a launch uses, `entry` the same in terms of the caller's symbols
    alone: a workspace is reserved before the first statement runs.
    """

    buffers: dict[Any, str] = field(default_factory=dict)
    launch: dict[Any, Any] = field(default_factory=dict)
    entry: dict[Any, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    workspaces: list[Workspace] = field(default_factory=list)
    features: frozenset[str] = frozenset()

    def fresh(self, name: str) -> str:
        """A symbol called `name`, or like it where that is taken."""
        candidate, count = name, 0
        while candidate in self.names:
            count += 1
            candidate = f"{name}_{count}"
        self.names.add(candidate)
        return candidate


def bind_signature(function: Any, source: OperatorSource) -> _Scope:
    """Match the PrimFunc's parameters with the operator's tensors and symbols.

    Raises
    ------
    CompileError
        If they differ in number, rank, extents or dtype.
    """
    scope = _Scope()
    expected = len(source.parameters) + len(source.symbols)
    if len(function.params) != expected:
        raise CompileError(
            f"operator {source.name!r} declares {len(source.parameters)} tensors and "
            f"{len(source.symbols)} symbols, its function takes {len(function.params)} parameters"
        )
    names = [parameter.name for parameter in source.parameters]
    if len(set(names)) != len(names):
        raise CompileError(f"operator {source.name!r}: two parameters share a name: {names}")
    scope.names.update(source.symbols, names)
    for variable, symbol in zip(
        function.params[len(source.parameters) :], source.symbols, strict=True
    ):
        scope.launch[variable] = scope.entry[variable] = symbol
    for buffer, parameter in zip(function.params, source.parameters, strict=False):
        if not hasattr(buffer, "shape") or len(buffer.shape) != len(parameter.shape):
            raise CompileError(
                f"operator {source.name!r}: parameter {parameter.name!r} has shape "
                f"{parameter.shape}, its function takes {buffer}"
            )
        if str(buffer.dtype) != parameter.dtype:
            raise CompileError(
                f"operator {source.name!r}: parameter {parameter.name!r} is declared "
                f"{parameter.dtype}, its function takes {buffer.dtype}"
            )
        scope.buffers[buffer] = parameter.name
        scope.names.update(*(symbols_of(extent) for extent in parameter.shape))
        for variable, extent in zip(buffer.shape, parameter.shape, strict=True):
            if isinstance(variable, tirx.Var) and variable not in scope.launch:
                scope.launch[variable] = scope.entry[variable] = extent
    for buffer in function.params[: len(source.parameters)]:
        _bind_dense_layout(buffer, scope)
    return scope


def _bind_dense_layout(buffer: Any, scope: _Scope) -> None:
    """Variables that describe a buffer's layout get the values of a dense tensor."""
    if isinstance(buffer.elem_offset, tirx.Var):
        scope.launch[buffer.elem_offset] = scope.entry[buffer.elem_offset] = 0
    for axis, stride in enumerate(buffer.strides):
        if isinstance(stride, tirx.Var) and stride not in scope.launch:
            inner = product(translate(n, scope.launch) for n in buffer.shape[axis + 1 :])
            scope.launch[stride] = scope.entry[stride] = inner


def read_host_function(
    function: Any, source: OperatorSource, features: Collection[str] = ()
) -> OperatorProgram:
    """Walk the host function of one operator.

    Parameters
    ----------
    function
        The host PrimFunc right after ``tirx.SplitHostDevice``.
    source
        The operator it was lowered from.
    features
        Those of the device: where ``dynamic_shared_memory`` is not among them, no launch may ask
        for shared memory.

    Raises
    ------
    CompileError
        If a statement has no counterpart in the launch plan; the message shows it.
    """
    scope = bind_signature(function, source)
    scope.features = frozenset(features)
    statements = _prune(_walk(function.body, scope), frozenset())
    return OperatorProgram(
        name=source.name,
        parameters=source.parameters,
        statements=statements,
        workspaces=tuple(scope.workspaces),
        symbols=source.symbols,
    )


def _walk(statement: Any, scope: _Scope) -> tuple[Statement, ...]:
    if isinstance(statement, tirx.SeqStmt):
        return tuple(inner for part in statement.seq for inner in _walk(part, scope))
    if isinstance(statement, tirx.Evaluate):
        return _walk_evaluate(statement, scope)
    if isinstance(statement, tirx.Bind):
        return _walk_bind(statement, scope)
    if isinstance(statement, tirx.AttrStmt):
        return _walk(statement.body, scope)
    if isinstance(statement, tirx.DeclBuffer):
        scope.buffers[statement.buffer] = _buffer_name(statement.data, scope)
        _require_no_offset(statement, scope)
        return ()
    if isinstance(statement, tirx.AllocBuffer):
        _reserve(statement.buffer, scope)
        return ()
    if isinstance(statement, tirx.For):
        symbol = scope.fresh(statement.loop_var.name)
        start = translate(statement.min, scope.launch)
        extent = translate(statement.extent, scope.launch)
        scope.launch[statement.loop_var] = symbol
        return (Loop(symbol, start, extent, _walk(statement.body, scope)),)
    if isinstance(statement, tirx.IfThenElse):
        otherwise = statement.else_case
        return (
            Condition(
                translate(statement.condition, scope.launch),
                _walk(statement.then_case, scope),
                _walk(otherwise, scope) if otherwise is not None else (),
            ),
        )
    raise _unsupported(statement)


def _unsupported(statement: Any) -> CompileError:
    text = str(statement)
    return CompileError(
        f"the launch plan cannot express the host statement {type(statement).__name__}: "
        f"{text[:300]}; split the operator so that the host only launches kernels"
    )


def _walk_bind(statement: Any, scope: _Scope) -> tuple[Statement, ...]:
    if str(statement.var.ty).startswith("float"):
        # Only a step towards an integer (ceil of log2): put in place where it is used.
        scope.launch[statement.var] = scope.entry[statement.var] = statement.value
        return ()
    value = translate(statement.value, scope.launch)
    symbol = scope.fresh(statement.var.name)
    scope.launch[statement.var] = symbol
    try:
        scope.entry[statement.var] = translate(statement.value, scope.entry)
    except CompileError:
        # It depends on a loop's variable, so no workspace can be sized by it.
        scope.entry.pop(statement.var, None)
    return (Bind(symbol, value),)


def _walk_evaluate(statement: Any, scope: _Scope) -> tuple[Statement, ...]:
    call = statement.value
    if isinstance(call, tirx.IntImm):
        return ()
    if call_name(call) != "call_ffi_kernel":
        raise _unsupported(statement)
    tags = [str(tag) for tag in call.attrs.launch_params]
    kernel, *rest = list(call.args)
    values, extents = rest[: len(rest) - len(tags)], rest[len(rest) - len(tags) :]
    offered = {f"{index}.{axis}" for index in ("blockIdx", "threadIdx") for axis in _AXES}
    if DYNAMIC_SHARED_MEMORY in scope.features:
        offered.add(_DYNAMIC_SHARED)
    sizes: dict[str, Expression] = {}
    for tag, extent in zip(tags, extents, strict=True):
        if tag not in offered:
            raise UnofferedLaunchError(
                f"kernel {kernel} is launched with {tag!r}, which this device does not offer"
            )
        sizes[tag] = translate(extent, scope.launch)
    return (
        Launch(
            kernel=str(getattr(kernel, "value", kernel)),
            arguments=tuple(_argument(value, scope) for value in values),
            grid=_extents(sizes, "blockIdx"),
            block=_extents(sizes, "threadIdx"),
            dynamic_shared_bytes=sizes.get(_DYNAMIC_SHARED, 0),
        ),
    )


def _extents(
    sizes: dict[str, Expression], prefix: str
) -> tuple[Expression, Expression, Expression]:
    x, y, z = (sizes.get(f"{prefix}.{axis}", 1) for axis in _AXES)
    return (x, y, z)


def _argument(value: Any, scope: _Scope) -> Argument:
    if call_name(value) == "buffer_data":
        return BufferArgument(_buffer_name(value, scope))
    kind = str(value.ty)
    if kind.startswith("float"):
        return ScalarArgument(*quotient(value, scope.launch, kind))
    return ScalarArgument(translate(value, scope.launch), kind)


def _buffer_name(pointer: Any, scope: _Scope) -> str:
    if call_name(pointer) == "buffer_data" and pointer.args[0] in scope.buffers:
        return scope.buffers[pointer.args[0]]
    raise CompileError(f"a kernel is given {pointer}, which is no parameter and no workspace")


def _require_no_offset(statement: Any, scope: _Scope) -> None:
    offset = statement.buffer.elem_offset
    if offset is not None and translate(offset, scope.launch) != 0:
        raise _unsupported(statement)


def _reserve(buffer: Any, scope: _Scope) -> None:
    if buffer.scope() != "global":
        raise CompileError(f"buffer {buffer.name!r} of scope {buffer.scope()!r} is not on the host")
    name = scope.fresh(buffer.name)
    elements = product(translate(extent, scope.entry) for extent in buffer.shape)
    element = dtype(str(buffer.dtype))
    scope.workspaces.append(Workspace(name, product((elements, element.nbytes(1)))))
    scope.buffers[buffer] = name


def _prune(statements: tuple[Statement, ...], used_after: frozenset[str]) -> tuple[Statement, ...]:
    """Drop bindings that nothing reads: each would be evaluated at every launch."""
    kept: list[Statement] = []
    used = used_after
    for statement in reversed(statements):
        if isinstance(statement, Bind) and statement.symbol not in used:
            continue
        pruned: Statement = statement
        if isinstance(statement, Loop):
            pruned = replace(statement, body=_prune(statement.body, used))
        elif isinstance(statement, Condition):
            then, otherwise = _prune(statement.then, used), _prune(statement.otherwise, used)
            pruned = replace(statement, then=then, otherwise=otherwise)
        used |= symbols_read(pruned)
        kept.append(pruned)
    return tuple(reversed(kept))


def symbols_read(statement: Statement) -> frozenset[str]:
    """Symbols that a statement and those inside it read."""
    if isinstance(statement, Bind):
        return symbols_of(statement.value)
    if isinstance(statement, Loop):
        return symbols_of(statement.start).union(
            symbols_of(statement.extent), *map(symbols_read, statement.body)
        )
    if isinstance(statement, Condition):
        inside = (*statement.then, *statement.otherwise)
        return symbols_of(statement.condition).union(*map(symbols_read, inside))
    scalars = (
        each
        for argument in statement.arguments
        if isinstance(argument, ScalarArgument)
        for each in (argument.value, argument.divisor)
    )
    read = (*statement.grid, *statement.block, statement.dynamic_shared_bytes, *scalars)
    return frozenset().union(*map(symbols_of, read))
