"""An evaluator of Libraries as ``rpc_server/LIBRARY.md`` tells a stranger to write one.

It believes its Library: what is out of bounds is not looked for. Of ours it imports nothing.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

import msgpack

Json: TypeAlias = "Any"
Symbols: TypeAlias = "dict[str, int]"

_BITS = {"bool": 8, "bfloat16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8}
_BITS |= {f"float{bits}": bits for bits in (16, 32, 64)}
_BITS |= {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (4, 8, 16, 32, 64)}
_OPERATIONS: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "mul": lambda a, b, _: a * b,
    "floordiv": lambda a, b, _: a // b,
    "floormod": lambda a, b, _: a % b,
    "truncdiv": lambda a, b, _: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "min": lambda a, b, _: min(a, b),
    "max": lambda a, b, _: max(a, b),
    "shift_left": lambda a, b, _: a << min(b, 63),
    "shift_right": lambda a, b, _: a >> b,
    "bit_and": lambda a, b, _: a & b,
    "eq": lambda a, b, _: a == b,
    "ne": lambda a, b, _: a != b,
    "lt": lambda a, b, _: a < b,
    "le": lambda a, b, _: a <= b,
    "gt": lambda a, b, _: a > b,
    "ge": lambda a, b, _: a >= b,
    "and": lambda a, b, _: bool(a and b),
    "or": lambda a, b, _: bool(a or b),
    "not": lambda a, _, __: not a,
    "select": lambda a, b, c: b if a else c,
    "ceil_log2": lambda a, _, __: next(n for n in itertools.count() if 2**n >= a),
}
MOST_STATEMENTS = 1 << 18
_LARGEST = {"float8_e4m3fn": 448, "float8_e5m2": 57344, "float16": 65504}
_LARGEST |= {"bfloat16": 255 << 120, "float32": 0xFFFFFF << 104, "float64": (2**53 - 1) << 971}
_MOST = (1 << 63) - 1


class RefusedError(Exception):
    """The call is refused."""


def read(data: bytes) -> dict[str, Json]:
    """The operators and the entries of a Library by name, and its modules' code."""
    assert data[:8] == b"TAPMLLIB" and int.from_bytes(data[8:12], "little") == 3
    end = 16 + int.from_bytes(data[12:16], "little")
    _, _, modules, kernels, operators, entries = msgpack.unpackb(data[16:end])
    code = []
    for _, _, _, nbytes, _ in modules:
        code.append(data[end : end + nbytes])
        end += nbytes
    assert end == len(data)
    named = {"kernels": kernels, "operators": operators, "entries": entries}
    return {kind: {each[0]: each for each in them} for kind, them in named.items()} | {"code": code}


def value_of(expression: Json, symbols: Symbols) -> int:
    """What an expression is."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        if expression not in symbols:
            raise RefusedError(expression)
        return symbols[expression]
    operation, *operands = expression
    a, b, c = ([value_of(each, symbols) for each in operands] + [0, 0])[:3]
    if ("div" in operation or "mod" in operation) and b == 0:
        raise RefusedError("division by zero")
    if operation.startswith("shift") and b < 0:
        raise RefusedError("negative shift")
    return int(_OPERATIONS[operation](a, b, c))


def nbytes_of(shape: list[int], dtype: str) -> int:
    """Bytes of a tensor."""
    return (math.prod(shape) * _BITS[dtype] + 7) // 8


class Window:
    """A tensor on a slot."""

    def __init__(self, slot: int, start: int, shape: list[int], dtype: str) -> None:
        self.slot, self.start, self.shape, self.dtype = slot, start, shape, dtype
        self.nbytes = nbytes_of(shape, dtype)


class Call:
    """One call; `workspaces` and `launches` in the form of the golden vectors."""

    def __init__(
        self, library: dict[str, Json], name: str, tensors: Json, symbols: Symbols
    ) -> None:
        self.workspaces: list[list[Json]] = []
        self.launches: list[dict[str, Json]] = []
        self._statements = 0
        self._slots = len(tensors)
        given = [Window(slot, 0, *each) for slot, each in enumerate(tensors)]
        if name in library["operators"]:
            self._operator(library["operators"][name], given, dict(symbols), 0, 0)
            return
        _, parameters, storages, values, calls, expected = library["entries"][name]
        symbols = _bound(parameters, given, symbols, expected)
        places = {parameter[0]: each for parameter, each in zip(parameters, given, strict=True)}
        for shared, storage in enumerate(storages):
            places[storage[0]] = self._workspace(storage, symbols, shared)
        windows = {}
        for title, storage, offset, shape, dtype in values:
            place, start = places[storage], value_of(offset, symbols)
            extents = [value_of(extent, symbols) for extent in shape]
            windows[title] = window = Window(place.slot, start, extents, dtype)
            if not 0 <= start <= start + window.nbytes <= place.nbytes:
                raise RefusedError(title)
        for step, (operator, arguments, inner) in enumerate(calls):
            self._operator(
                library["operators"][operator],
                [windows[each] for each in arguments],
                {symbol: value_of(expression, symbols) for symbol, expression in inner},
                step,
                len(storages),
            )

    def _workspace(self, workspace: Json, symbols: Symbols, shared: int) -> Window:
        nbytes = value_of(workspace[1], symbols)
        if not 0 <= nbytes <= 1 << 48:
            raise RefusedError(workspace[0])
        self.workspaces.append([workspace[0], nbytes, shared])
        self._slots += 1
        return Window(self._slots - 1, 0, [nbytes], "uint8")

    def _operator(
        self, operator: Json, given: list[Window], symbols: Symbols, step: int, shared: int
    ) -> None:
        _, parameters, statements, workspaces, expected = operator
        symbols = _bound(parameters, given, symbols, expected)
        places = {parameter[0]: each for parameter, each in zip(parameters, given, strict=True)}
        for index, workspace in enumerate(workspaces):
            places[workspace[0]] = self._workspace(workspace, symbols, shared + index)
        self._run(statements, symbols, places, step)

    def _run(
        self, statements: Json, symbols: Symbols, places: dict[str, Window], step: int
    ) -> None:
        for kind, *fields in statements:
            self._count()
            if kind == "launch":
                self._launch(fields, symbols, places, step)
            elif kind == "loop":
                start, extent = (value_of(each, symbols) for each in fields[1:3])
                for number in range(start, start + extent):
                    self._count()
                    self._run(fields[3], symbols | {fields[0]: number}, places, step)
            elif kind == "if":
                branch = fields[1] if value_of(fields[0], symbols) else fields[2]
                self._run(branch, dict(symbols), places, step)
            else:
                symbols[fields[0]] = number = value_of(fields[1], symbols)
                if abs(number) > _MOST:
                    raise RefusedError(fields[0])

    def _count(self) -> None:
        self._statements += 1
        if self._statements > MOST_STATEMENTS:
            raise RefusedError("too many statements")

    def _launch(self, launch: Json, symbols: Symbols, places: dict[str, Window], step: int) -> None:
        kernel, arguments, *sizes, shared = launch
        grid, block = ([value_of(each, symbols) for each in size] for size in sizes)
        if not all(0 <= each <= _MOST for each in grid + block):
            raise RefusedError(kernel)
        if 0 in grid + block:
            return
        made = {"kernel": kernel, "grid": grid, "block": block, "step": step}
        made["arguments"] = [_argument(*each, symbols=symbols, places=places) for each in arguments]
        made["dynamic_shared_bytes"] = nbytes = value_of(shared, symbols)
        if not 0 <= nbytes <= 1 << 48:
            raise RefusedError(kernel)
        self.launches.append(made)


def _argument(
    kind: str, what: Json, *rest: Json, symbols: Symbols, places: dict[str, Window]
) -> list[Json]:
    if kind == "scalar":
        number, (dtype, divisor) = value_of(what, symbols), rest
        if divisor != 1:
            return [kind, _quotient(number, value_of(divisor, symbols), dtype), dtype]
        low, high = _range_of(dtype)
        if not low <= number <= high:
            raise RefusedError(dtype)
        return [kind, str(number), dtype]
    place = places[what]
    if kind == "tensor":
        return [kind, place.slot, place.start, place.shape, place.dtype]
    start = value_of(rest[0], symbols)
    nbytes = value_of(rest[1], symbols) if len(rest) > 1 else place.nbytes - start
    if not 0 <= start <= start + nbytes <= place.nbytes:
        raise RefusedError(what)
    return [kind, place.slot, place.start + start, nbytes]


def _quotient(number: int, divisor: int, dtype: str) -> str:
    if divisor == 0:
        raise RefusedError(dtype)
    exact = abs(Fraction(number, divisor))
    if exact and not Fraction(2) ** -1022 <= exact <= _LARGEST[dtype]:
        raise RefusedError(dtype)
    return struct.pack(">d", number / divisor or 0.0).hex()


def _range_of(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return 0, 1
    if "int" not in dtype:
        return -(1 << 53), 1 << 53
    bits = _BITS[dtype]
    return (0, (1 << bits) - 1) if dtype[0] == "u" else (-1 << (bits - 1), (1 << (bits - 1)) - 1)


def _bound(parameters: Json, given: list[Window], symbols: Symbols, expected: Json) -> Symbols:
    """The symbols that a call gives values."""
    if set(symbols) != set(expected) or len(parameters) != len(given):
        raise RefusedError("symbols or tensors")
    bound = dict(symbols)
    extents = []
    for (name, shape, dtype, _), window in zip(parameters, given, strict=True):
        if dtype != window.dtype or len(shape) != len(window.shape) or min([*window.shape, 0]) < 0:
            raise RefusedError(name)
        extents += list(zip(shape, window.shape, strict=True))
    for extent, have in extents:
        if isinstance(extent, str):
            bound.setdefault(extent, have)
    if any(value_of(extent, bound) != have for extent, have in extents):
        raise RefusedError("a shape")
    return bound
