"""Writes a manifest, of a compiled or of a new kernel."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Final

from tapml.kernels.agreement import spell_parameter
from tapml.kernels.expression_text import substitute, write
from tapml.kernels.manifest import FORMAT
from tapml.plan.graph_plan import Operator
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression
from tapml_targets.library import (
    Argument,
    Bind,
    BufferArgument,
    Condition,
    Kernel,
    Launch,
    Library,
    Loop,
    ScalarArgument,
    Statement,
)

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Symbols = Mapping[str, Expression]


def manifest_head(operator: Operator, platform: str, sources: Sequence[str]) -> str:
    """The keys that identify a kernel's operator, as TOML."""
    lines = [
        f"# A hand-written kernel of {operator.name}: `tapml kernel check` tries it.",
        "",
        f"format = {FORMAT}",
        f"operator = {_quoted(operator.name)}",
        "# A folder shared between sessions finds the kernel by this hash of the function; without",
        "# it by the operator's name and parameters.",
        f"hash = {_quoted(operator.hash)}",
        f"target = {_quoted(platform)}",
        *([f"source = {_quoted(sources[0])}"] if len(sources) == 1 else []),
        "",
        "# What the operator reads and writes, in its order.",
        "parameters = [",
        *(f"  {_quoted(spell_parameter(parameter))}," for parameter in operator.parameters),
        "]",
    ]
    if operator.symbols:
        lines.append(f"symbols = [{', '.join(map(_quoted, operator.symbols))}]")
    return "\n".join(lines) + "\n"


def manifest_of_library(
    operator: Operator, platform: str, library: Library, sources: Sequence[str]
) -> str:
    """The manifest of a compiled Library; `sources` name the files of its modules.

    Raises
    ------
    InputError
        If a manifest cannot express the Library.
    """
    program = library.operators[operator.name]
    own = {extent for p in operator.parameters for extent in p.shape if isinstance(extent, str)}
    symbols: dict[str, Expression] = {symbol: symbol for symbol in (*own, *operator.symbols)}
    unspeakable = [name for name in symbols if not _speakable(name)]
    if unspeakable:
        raise InputError(f"the shape symbol {unspeakable[0]!r} cannot be written in an expression")
    text = manifest_head(operator, platform, sources)
    if program.workspaces:
        text += "\n# Bytes of memory that lives for one call.\n[workspaces]\n"
        for workspace in program.workspaces:
            text += f"{workspace.name} = {_number(workspace.nbytes, symbols)}\n"
    return text + _Writer(library, sources).statements(program.statements, symbols, "launches")


class _Writer:
    """Writes statements as ``[[launches]]``, with named values inlined."""

    def __init__(self, library: Library, sources: Sequence[str]) -> None:
        self._library = library
        self._sources = sources

    def statements(self, statements: Sequence[Statement], symbols: Symbols, table: str) -> str:
        symbols = dict(symbols)
        text = ""
        for statement in statements:
            match statement:
                case Launch():
                    text += self.launch(statement, symbols, table)
                case Bind(symbol, value):
                    symbols[symbol] = _resolved(value, symbols)
                case Loop():
                    text += self.loop(statement, symbols, table)
                case Condition(condition, then, otherwise):
                    text += self.branch(condition, then, symbols, table)
                    text += self.branch(("not", condition), otherwise, symbols, table)
        return text

    def loop(self, loop: Loop, symbols: Symbols, table: str) -> str:
        name = loop.symbol
        if not _speakable(name) or name in symbols:
            name = next(f"i{n}" for n in range(len(symbols) + 1) if f"i{n}" not in symbols)
        lines = [
            f"\n[[{table}]]",
            f"for = {_quoted(name)}",
            f"from = {_number(loop.start, symbols)}",
            f"count = {_number(loop.extent, symbols)}",
        ]
        inner = {**symbols, loop.symbol: name, name: name}
        return "\n".join(lines) + "\n" + self.statements(loop.body, inner, f"{table}.launches")

    def branch(
        self, condition: Expression, body: Sequence[Statement], symbols: Symbols, table: str
    ) -> str:
        if not body:
            return ""
        head = f"\n[[{table}]]\nwhen = {_number(condition, symbols)}\n"
        return head + self.statements(body, symbols, f"{table}.launches")

    def launch(self, launch: Launch, symbols: Symbols, table: str) -> str:
        kernel = self._library.kernels[launch.kernel]
        lines = [f"\n[[{table}]]", f"entry = {_quoted(kernel.symbol)}"]
        if len(self._sources) > 1:
            lines.append(f"source = {_quoted(self._sources[kernel.module])}")
        lines += self._attributes(kernel)
        lines += [
            "# In the order of the kernel in its source.",
            "arguments = [",
            *(f"  {_argument(argument, symbols)}," for argument in launch.arguments),
            "]",
            "# Blocks (work-groups) and threads of each, as (x, y, z).",
            f"grid = {_extents(launch.grid, symbols)}",
            f"block = {_extents(launch.block, symbols)}",
        ]
        return "\n".join(lines) + "\n"

    def _attributes(self, kernel: Kernel) -> list[str]:
        lines = []
        options = self._library.modules[kernel.module].options
        if options:
            lines.append(f"options = [{', '.join(map(_quoted, options))}]")
        if kernel.shared_memory_bytes:
            lines.append(f"shared_memory_bytes = {kernel.shared_memory_bytes}")
        if kernel.features:
            lines.append(f"features = [{', '.join(map(_quoted, kernel.features))}]")
        return lines


def _argument(argument: Argument, symbols: Symbols) -> str:
    match argument:
        case BufferArgument(name, 0, None):
            return _quoted(name)
        case BufferArgument(name, offset, nbytes):
            size = "" if nbytes is None else f", nbytes = {_number(nbytes, symbols)}"
            return f"{{ buffer = {_quoted(name)}, byte_offset = {_number(offset, symbols)}{size} }}"
        case ScalarArgument(value, dtype, 1):
            return f"{{ scalar = {_number(value, symbols)}, dtype = {_quoted(dtype)} }}"
    raise InputError("a kernel that takes whole tensors or quotients cannot be written by hand")


def _extents(extents: Sequence[Expression], symbols: Symbols) -> str:
    shown = list(extents)
    while len(shown) > 1 and shown[-1] == 1:
        shown.pop()
    return f"[{', '.join(_number(extent, symbols) for extent in shown)}]"


def _number(expression: Expression, symbols: Symbols) -> str:
    resolved = _resolved(expression, symbols)
    return str(resolved) if isinstance(resolved, int) else _quoted(write(resolved))


def _resolved(expression: Expression, symbols: Symbols) -> Expression:
    def meaning(symbol: str) -> Expression:
        try:
            return symbols[symbol]
        except KeyError:
            raise InputError(f"nothing defines the symbol {symbol!r} a value") from None

    return substitute(expression, meaning)


def _speakable(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not keyword.iskeyword(name)


def _quoted(text: str) -> str:
    return json.dumps(text)
