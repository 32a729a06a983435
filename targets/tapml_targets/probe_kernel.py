"""What every GPU platform's probe is: a matrix times a vector in the platform's own language.

It is as TVM's schedule for GPUs writes it: a block per row, threads that take eight columns at a
time, a tree of sums in shared memory behind barriers. A module ``<platform>/probe.py`` has its
text, as the kernel ``tapml_probe(y, a, x, columns)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from tapml_targets.errors import InputError
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
)

THREADS: Final = 64
"""Of a block. The columns are a multiple of eight times as many."""

_Spelling = TypeVar("_Spelling")


def spelling(spellings: Mapping[str, _Spelling], dtype: str, language: str) -> _Spelling:
    """How a language spells `dtype`.

    Raises
    ------
    InputError
        If it has no such numbers.
    """
    if dtype not in spellings:
        raise InputError(f"{language} has no {dtype}; choose from {', '.join(spellings)}")
    return spellings[dtype]


def product_library(platform: str, module: CodeModule, dtype: str) -> Library:
    """A Library with the operator ``probe``: y[rows] = a[rows, columns] x[columns]."""
    arguments = (
        BufferArgument("y"),
        BufferArgument("a"),
        BufferArgument("x"),
        ScalarArgument("columns", "int32"),
    )
    operator = OperatorProgram(
        "probe",
        (
            Parameter("a", ("rows", "columns"), dtype, "input"),
            Parameter("x", ("columns",), dtype, "input"),
            Parameter("y", ("rows",), dtype, "output"),
        ),
        (Launch("probe", arguments, ("rows", 1, 1), (THREADS, 1, 1)),),
    )
    features = () if dtype == "float32" else (dtype,)
    kernel = Kernel("probe", "tapml_probe", 0, THREADS, features=features)
    return Library(platform, (module,), {"probe": kernel}, {"probe": operator})
