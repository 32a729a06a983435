"""From a decoded msgpack header to the dataclasses of a Library, checking every type on the way."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, cast

from tapml_targets.errors import ProtocolError
from tapml_targets.expression import Expression, from_wire
from tapml_targets.library import (
    Argument,
    Bind,
    BufferArgument,
    CodeModule,
    Condition,
    EntryCall,
    EntryProgram,
    EntryStorage,
    EntryValue,
    Kernel,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    Parameter,
    Role,
    ScalarArgument,
    Statement,
    TensorArgument,
    Workspace,
)
from tapml_targets.library_check import MAX_NESTING

MAX_METADATA: Final = 1024
_BOUND: Final = 1 << 63


def decode_header(header: Any, code: memoryview) -> Library:
    """Build the Library that `header` describes; `code` holds the modules' bytes.

    Raises
    ------
    ProtocolError
        If something is not of the type or size that is expected in its place.
    """
    target, metadata, modules, kernels, operators, entries = _fields(header, 6, "header")
    return Library(
        target=_text(target, "target"),
        modules=_modules(modules, code),
        kernels=_named([_kernel(item) for item in _items(kernels, "kernels")]),
        operators=_named([_operator(item) for item in _items(operators, "operators")]),
        entries=_named([_entry(item) for item in _items(entries, "entries")]),
        metadata=_metadata(metadata),
    )


def _fields(data: Any, count: int, what: str) -> list[Any]:
    if not isinstance(data, list) or len(data) != count:
        raise ProtocolError(f"Library: {what}: expected a list of {count} fields")
    return data


def _items(data: Any, what: str) -> list[Any]:
    if not isinstance(data, list):
        raise ProtocolError(f"Library: {what}: expected a list, got {type(data).__name__}")
    return data


def _text(data: Any, what: str) -> str:
    if not isinstance(data, str):
        raise ProtocolError(f"Library: {what}: expected text, got {type(data).__name__}")
    return data


def _integer(data: Any, what: str) -> int:
    if not isinstance(data, int) or isinstance(data, bool) or not -_BOUND <= data < _BOUND:
        raise ProtocolError(f"Library: {what}: expected a 64-bit integer")
    return data


def _expression(data: Any) -> Expression:
    expression = from_wire(data)
    if isinstance(expression, int):
        _integer(expression, "expression")
    return expression


def _texts(data: Any, what: str) -> tuple[str, ...]:
    return tuple(_text(item, what) for item in _items(data, what))


def _expressions(data: Any, what: str) -> tuple[Expression, ...]:
    return tuple(_expression(item) for item in _items(data, what))


def _named(items: list[Any]) -> dict[str, Any]:
    names = [item.name for item in items]
    if any(first >= second for first, second in pairwise(names)):
        raise ProtocolError("Library: named items must be sorted and none be there twice")
    return dict(zip(names, items, strict=True))


def _metadata(data: Any) -> dict[str, str]:
    pairs = [_fields(item, 2, "metadata") for item in _items(data, "metadata")]
    texts = [(_text(name, "metadata"), _text(text, "metadata")) for name, text in pairs]
    if len(texts) > MAX_METADATA or texts != sorted(dict(texts).items()):
        raise ProtocolError(
            f"Library: metadata must be at most {MAX_METADATA} sorted names, each once"
        )
    return dict(texts)


def _modules(data: Any, code: memoryview) -> tuple[CodeModule, ...]:
    modules: list[CodeModule] = []
    position = 0
    for item in _items(data, "modules"):
        dialect, size, options = _fields(item, 3, "module")
        end = position + _integer(size, "module size")
        if not position <= end <= len(code):
            raise ProtocolError(f"Library: module {len(modules)} is cut short or has no size")
        modules.append(
            CodeModule(
                _text(dialect, "dialect"), bytes(code[position:end]), _texts(options, "options")
            )
        )
        position = end
    if position != len(code):
        raise ProtocolError(f"Library: {len(code) - position} bytes follow the last module")
    return tuple(modules)


def _kernel(data: Any) -> Kernel:
    name, symbol, module, threads, shared, features = _fields(data, 6, "kernel")
    return Kernel(
        _text(name, "kernel name"),
        _text(symbol, "kernel symbol"),
        _integer(module, "kernel module"),
        _integer(threads, "threads per block"),
        _integer(shared, "shared memory"),
        _texts(features, "kernel features"),
    )


def _parameters(data: Any) -> tuple[Parameter, ...]:
    parameters = []
    for item in _items(data, "parameters"):
        name, shape, dtype, role = _fields(item, 4, "parameter")
        parameters.append(
            Parameter(
                _text(name, "parameter name"),
                _expressions(shape, "parameter shape"),
                _text(dtype, "parameter dtype"),
                cast("Role", _text(role, "parameter role")),
            )
        )
    return tuple(parameters)


def _operator(data: Any) -> OperatorProgram:
    name, parameters, statements, workspaces, symbols = _fields(data, 5, "operator")
    pairs = [_fields(item, 2, "workspace") for item in _items(workspaces, "workspaces")]
    return OperatorProgram(
        _text(name, "operator name"),
        _parameters(parameters),
        _statements(statements, 0),
        tuple(Workspace(_text(n, "workspace name"), _expression(size)) for n, size in pairs),
        _texts(symbols, "operator symbols"),
    )


def _statements(data: Any, depth: int) -> tuple[Statement, ...]:
    if depth > MAX_NESTING:
        raise ProtocolError(f"Library: statements are nested deeper than {MAX_NESTING}")
    return tuple(_statement(item, depth) for item in _items(data, "statements"))


def _statement(data: Any, depth: int) -> Statement:
    kind, *fields = _items(data, "statement") or [None]
    match kind, len(fields):
        case "launch", 4:
            kernel, arguments, grid, block = fields
            return Launch(
                _text(kernel, "kernel name"),
                tuple(_argument(item) for item in _items(arguments, "arguments")),
                _extents(grid),
                _extents(block),
            )
        case "loop", 4:
            symbol, start, extent, body = fields
            return Loop(
                _text(symbol, "loop symbol"),
                _expression(start),
                _expression(extent),
                _statements(body, depth + 1),
            )
        case "if", 3:
            condition, then, otherwise = fields
            return Condition(
                _expression(condition),
                _statements(then, depth + 1),
                _statements(otherwise, depth + 1),
            )
        case "bind", 2:
            return Bind(_text(fields[0], "symbol"), _expression(fields[1]))
    raise ProtocolError("Library: expected a launch, loop, if or bind statement")


def _extents(data: Any) -> tuple[Expression, Expression, Expression]:
    x, y, z = _fields(data, 3, "grid and block")
    return _expression(x), _expression(y), _expression(z)


def _argument(data: Any) -> Argument:
    kind, *fields = _items(data, "argument") or [None]
    match kind, len(fields):
        case "buffer", 2 | 3:
            return BufferArgument(_text(fields[0], "argument name"), *map(_expression, fields[1:]))
        case "tensor", 1:
            return TensorArgument(_text(fields[0], "argument name"))
        case "scalar", 2:
            return ScalarArgument(_expression(fields[0]), _text(fields[1], "argument dtype"))
    raise ProtocolError("Library: expected a buffer, tensor or scalar argument")


def _entry(data: Any) -> EntryProgram:
    name, parameters, storages, values, calls, symbols = _fields(data, 6, "entry")
    pairs = [_fields(item, 2, "storage") for item in _items(storages, "storages")]
    return EntryProgram(
        _text(name, "entry name"),
        _parameters(parameters),
        tuple(EntryStorage(_text(n, "storage name"), _expression(size)) for n, size in pairs),
        tuple(_value(item) for item in _items(values, "values")),
        tuple(_call(item) for item in _items(calls, "calls")),
        _texts(symbols, "entry symbols"),
    )


def _value(data: Any) -> EntryValue:
    name, storage, byte_offset, shape, dtype = _fields(data, 5, "value")
    return EntryValue(
        _text(name, "value name"),
        _text(storage, "value storage"),
        _expression(byte_offset),
        _expressions(shape, "value shape"),
        _text(dtype, "value dtype"),
    )


def _call(data: Any) -> EntryCall:
    operator, arguments, symbols = _fields(data, 3, "call")
    pairs = [_fields(item, 2, "call symbol") for item in _items(symbols, "call symbols")]
    return EntryCall(
        _text(operator, "operator name"),
        _texts(arguments, "call arguments"),
        tuple((_text(n, "symbol"), _expression(value)) for n, value in pairs),
    )
