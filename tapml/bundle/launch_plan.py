"""Describes a Library as text: parameters, workspaces, launches with their grids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tapml_targets.errors import InputError
from tapml_targets.expression import Expression, evaluate, render
from tapml_targets.library import (
    Argument,
    Bind,
    BufferArgument,
    Condition,
    Launch,
    Library,
    Loop,
    ScalarArgument,
    Statement,
)


def describe_launches(library: Library, symbols: Mapping[str, int]) -> str:
    """The Library's operators as text.

    Parameters
    ----------
    symbols
        Shape symbols of one test, at which expressions are also evaluated.
    """
    lines = [f"target: {library.target}"]
    for name, value in sorted(library.metadata.items()):
        lines.append(f"{name}: {value}")
    if symbols:
        lines.append("in this test: " + ", ".join(f"{n} = {v}" for n, v in sorted(symbols.items())))
    for operator in library.operators.values():
        lines += ["", f"operator {operator.name}"]
        for parameter in operator.parameters:
            shape = ", ".join(_value(extent, symbols) for extent in parameter.shape)
            lines.append(f"  {parameter.role:6} {parameter.name}: {parameter.dtype}[{shape}]")
        for symbol in operator.symbols:
            lines.append(f"  symbol {symbol}")
        for workspace in operator.workspaces:
            nbytes = _value(workspace.nbytes, symbols)
            lines.append(f"  workspace {workspace.name}: {nbytes} bytes")
        lines += _statements(operator.statements, symbols, "  ")
    lines.append("")
    for kernel in library.kernels.values():
        needs = ", ".join(kernel.features) or "nothing special"
        lines.append(
            f"kernel {kernel.name}: {kernel.symbol} of module {kernel.module:02d}, "
            f"{kernel.threads_per_block or 'any number of'} threads a block, "
            f"{kernel.shared_memory_bytes} bytes shared, needs {needs}"
        )
    for index, module in enumerate(library.modules):
        where = f" for {module.architecture}" if module.architecture else ""
        lines.append(
            f"module {index:02d}: {module.dialect} ({module.kind}){where}, {len(module.code)} bytes"
        )
    return "\n".join(lines) + "\n"


def _statements(
    statements: Sequence[Statement], symbols: Mapping[str, int], indent: str
) -> Iterator[str]:
    for statement in statements:
        match statement:
            case Launch(kernel, arguments, grid, block, shared):
                given = ", ".join(_argument(argument, symbols) for argument in arguments)
                yield f"{indent}launch {kernel}({given})"
                for name, extents in (("grid", grid), ("block", block)):
                    text = ", ".join(_value(extent, symbols) for extent in extents)
                    yield f"{indent}  {name} ({text})"
                if shared != 0:
                    yield f"{indent}  shared memory {_value(shared, symbols)} bytes"
            case Loop(symbol, start, extent, body):
                first, count = _value(start, symbols), _value(extent, symbols)
                yield f"{indent}for {symbol} from {first}, {count} times:"
                yield from _statements(body, symbols, indent + "  ")
            case Condition(condition, then, otherwise):
                yield f"{indent}if {_value(condition, symbols)}:"
                yield from _statements(then, symbols, indent + "  ")
                if otherwise:
                    yield f"{indent}else:"
                    yield from _statements(otherwise, symbols, indent + "  ")
            case Bind(symbol, value):
                yield f"{indent}{symbol} = {_value(value, symbols)}"


def _argument(argument: Argument, symbols: Mapping[str, int]) -> str:
    match argument:
        case ScalarArgument(value, dtype, divisor):
            below = "" if divisor == 1 else f" / {_value(divisor, symbols)}"
            return f"{dtype} {_value(value, symbols)}{below}"
        case BufferArgument(name, byte_offset, nbytes) if (byte_offset, nbytes) != (0, None):
            size = "" if nbytes is None else f", {_value(nbytes, symbols)} of them"
            return f"{name} + {_value(byte_offset, symbols)} bytes{size}"
    return argument.name


def _value(expression: Expression, symbols: Mapping[str, int]) -> str:
    """The expression, and its value if known."""
    text = render(expression)
    if isinstance(expression, int):
        return text
    try:
        return f"{text} = {evaluate(expression, symbols)}"
    except InputError:
        # A loop's own symbol.
        return text
