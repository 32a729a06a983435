"""PrimFunc to HIP C: scheduled for ROCm, printed by TVM's printer of C with threads.

TVM's own generator for ROCm makes machine code for one architecture, and needs a linker and AMD's
bitcode; a text is for all of them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from tapml_targets.codegen import threaded_c
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.library import CodeModule, Library
from tapml_targets.rocm.prologue import PROLOGUE
from tapml_targets.target import Target

DIALECT: Final = "hip-c"

# Clangs before 17 take attributes of a type behind the storage class alone.
_ALIGNED: Final = re.compile(r"\b__shared__ (alignas\(\d+\)) ")


def generate(source: OperatorSource, target: Target) -> Library:
    """Compile one operator.

    Parameters
    ----------
    source
        The operator, unscheduled, in its form for processors.
    target
        Limits that the schedule keeps to, and the options of
        :func:`tapml_targets.codegen.threaded_c.generate`.

    Returns
    -------
    Library
        One module in the dialect ``hip-c``, its kernels, and one operator.

    Raises
    ------
    CompileError
        If TVM refuses the operator, its host half cannot be a launch plan, or an option is unknown.
    """
    dialect = threaded_c.Dialect(
        DIALECT,
        PROLOGUE,
        printer="cuda",
        schedule_kind="rocm",
        schedule_attributes={"mcpu": "gfx90a", "thread_warp_size": threaded_c.WARP},
        attributes={"arch": "sm_61", "thread_warp_size": threaded_c.WARP},
        fixed_width=False,
    )
    library = threaded_c.generate(source, target, dialect)
    return replace(library, modules=tuple(map(_as_hip, library.modules)))


def _as_hip(module: CodeModule) -> CodeModule:
    return replace(module, code=_ALIGNED.sub(r"\1 __shared__ ", module.code.decode()).encode())
