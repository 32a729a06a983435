"""The kernels of a self-test, independent of their language.

A platform with a self-test has ``self_test.py`` with ``self_test_library(part, limits)``, which
calls :func:`library_of` with its source. A part is one Library, so that a kernel that does not
build costs only its part. A kernel that a platform's language cannot express is left out.

``core``
    ``tapml_floats`` of float32, as below, and three kernels of integers.
    ``tapml_loops(out, steps, sizes)``, two blocks of one thread: the first writes to ``out[0]`` the
    sum of 32-bit ``steps`` read in ``sizes[0]`` iterations at places that a linear congruential
    generator chooses, so that no compiler shortens the loop; the second to ``out[1]`` the same in
    ``sizes[1]`` times ``sizes[2]`` nested ones. A device that counts a thread's iterations counts
    each by itself.
    ``tapml_block(out, shared)``, one block: thread i writes ``i + 1`` to ``shared[i]`` and, behind
    a barrier, the value of thread ``last - i`` to ``out[i]``.
    ``tapml_int64(out, a, b)``, a thread per element: the rows of ``ROWS["int64"]``.
``float64``, ``float16``
    ``tapml_floats(out, a, b, c)``, a thread per element: the rows of :data:`ROWS`, each as the
    platform's compiler makes it by default. ``float16`` also has ``tapml_convert(out, a)``,
    which converts from float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from tapml_targets.expression import Expression
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
)
from tapml_targets.limits import Limits

CORE: Final = "core"
PARTS: Final = (CORE, "float64", "float16")
_ARITHMETIC: Final = (
    "copy", "add", "subtract", "multiply", "divide", "square_root", "multiply_add",
    "multiply_add_apart", "fused", "exp", "log", "tanh", "is_nan", "select", "lesser",
    "minimum",
)  # fmt: skip
ROWS: Final = {
    "int64": (
        "add", "multiply", "shift_left", "shift_right", "shift_right_unsigned", "divide", "less",
    ),
    "float32": _ARITHMETIC,
    "float64": (
        "copy", "add", "subtract", "multiply", "divide", "square_root", "multiply_add_apart",
        "is_nan",
    ),
    "float16": (*_ARITHMETIC, "add_thrice"),
}  # fmt: skip
"""The functions of each dtype, in the order of the output's rows."""
SPELT: Final = {
    "copy": "x",
    "add": "x + y",
    "add_thrice": "(x + y) + z",
    "subtract": "x - y",
    "multiply": "x * y",
    "divide": "x / y",
    "square_root": "sqrt(x)",
    "multiply_add": "x * y + z",
    "fused": "fma(x, y, z)",
    "exp": "exp(x)",
    "log": "log(x)",
    "tanh": "tanh(x)",
}
"""Those that every language like C spells alike."""
FEATURES: Final = {"float64": "float64", "float16": "float16"}
"""The feature a device must have for a part."""
STEPS: Final = 64


def library_of(target: str, part: str, code: CodeModule | Mapping[str, CodeModule]) -> Library:
    """The Library of a part.

    Parameters
    ----------
    target
        The platform.
    part
        One of :data:`PARTS`.
    code
        One module with all of the part's kernels, or a module per kernel, by the names above
        without their ``tapml_``; an operator whose kernel is missing is left out.
    """
    features = (FEATURES[part],) if part in FEATURES else ()
    modules = (code,) if isinstance(code, CodeModule) else tuple(code.values())
    places = {} if isinstance(code, CodeModule) else {name: at for at, name in enumerate(code)}
    operators = [
        OperatorProgram(
            name,
            tuple(parameters),
            (
                Launch(
                    name,
                    tuple(BufferArgument(p.name) for p in (parameters[-1], *parameters[:-1])),
                    grid,
                    block,
                ),
            ),
        )
        for name, parameters, grid, block in _operators(part)
        if isinstance(code, CodeModule) or name in places
    ]
    return Library(
        target,
        modules,
        {
            each.name: Kernel(
                each.name, f"tapml_{each.name}", places.get(each.name, 0), 0, 0, features
            )
            for each in operators
        },
        {each.name: each for each in operators},
    )


_Extents: TypeAlias = tuple[Expression, Expression, Expression]
_ONE: Final[_Extents] = (1, 1, 1)
_PER_ELEMENT: Final[_Extents] = ("n", 1, 1)


def block_threads(limits: Limits) -> int:
    """Threads of the largest block along x that a device states."""
    threads = limits.max_threads_per_block or 1
    return min(threads, limits.max_block[0]) if limits.max_block[0] else threads


def dtype_of(part: str) -> str:
    """The dtype whose arithmetic a part asks for."""
    return "float32" if part == CORE else part


def _operators(part: str) -> list[tuple[str, list[Parameter], _Extents, _Extents]]:
    """Name, parameters with the output last, grid and block of each operator of a part."""
    dtype = dtype_of(part)
    floats = [Parameter(name, ("n",), dtype, "input") for name in "abc"]
    out = Parameter("out", (len(ROWS[dtype]), "n"), dtype, "output")
    found: list[tuple[str, list[Parameter], _Extents, _Extents]] = [
        ("floats", [*floats, out], _PER_ELEMENT, _ONE)
    ]
    if part == "float16":
        wide = Parameter("a", ("n",), "float32", "input")
        half = Parameter("out", ("n",), "float16", "output")
        found.append(("convert", [wide, half], _PER_ELEMENT, _ONE))
    return found + _integers() if part == CORE else found


def _integers() -> list[tuple[str, list[Parameter], _Extents, _Extents]]:
    loops = [
        Parameter("steps", (STEPS,), "uint32", "input"),
        Parameter("sizes", (3,), "int32", "input"),
        Parameter("out", (2,), "int32", "output"),
    ]
    block = [
        Parameter("shared", ("n",), "int32", "inout"),
        Parameter("out", ("n",), "int32", "output"),
    ]
    wide_rows = len(ROWS["int64"])
    int64 = [
        *(Parameter(name, ("n",), "int64", "input") for name in "ab"),
        Parameter("out", (wide_rows, "n"), "int64", "output"),
    ]
    return [
        ("loops", loops, (2, 1, 1), _ONE),
        ("block", block, _ONE, _PER_ELEMENT),
        ("int64", int64, _PER_ELEMENT, _ONE),
    ]
