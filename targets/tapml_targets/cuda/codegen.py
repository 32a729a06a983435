"""PrimFunc to CUDA C, as TVM prints it, under a short prologue."""

from __future__ import annotations

from typing import Any, Final

from tapml_targets.codegen import threaded_c
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.cuda.prologue import PROLOGUE
from tapml_targets.errors import CompileError
from tapml_targets.library import DYNAMIC_SHARED_MEMORY, Library
from tapml_targets.target import Target

DIALECT: Final = "cuda-c"

# dlight's products for tensor cores are made for this architecture and later ones. Without them
# code is scheduled for the last one before: the text is the same for all.
_WITH_TENSOR_CORES: Final = "sm_80"
_WITHOUT: Final = "sm_61"


def generate(source: OperatorSource, target: Target) -> Library:
    """Compile one operator.

    Parameters
    ----------
    source
        The operator, unscheduled, in its form for processors.
    target
        Limits that the schedule keeps to, and the options of
        :func:`tapml_targets.codegen.threaded_c.generate`, and ``tensor_cores``: ``on`` schedules
        products of float16 and int8 for them where dlight can, with dynamic shared memory.

    Returns
    -------
    Library
        One module in the dialect ``cuda-c``, its kernels, and one operator.

    Raises
    ------
    CompileError
        If TVM refuses the operator, its host half cannot be a launch plan, or an option is unknown.
    """
    options = dict(target.options)
    wanted = options.pop("tensor_cores", "off")
    if wanted not in ("on", "off"):
        raise CompileError(f"the option 'tensor_cores' is one of on, off, not {wanted!r}")
    if wanted == "on" and DYNAMIC_SHARED_MEMORY not in target.limits.features:
        raise CompileError(
            "tensor cores take shared memory that a launch asks for; the target has no feature "
            f"{DYNAMIC_SHARED_MEMORY!r}: leave out tensor_cores=on, or name a device that has it"
        )
    attributes: dict[str, Any] = {
        "arch": _WITH_TENSOR_CORES if wanted == "on" else _WITHOUT,
        "thread_warp_size": threaded_c.WARP,
    }
    dialect = threaded_c.Dialect(DIALECT, PROLOGUE, "cuda", "cuda", attributes, attributes)
    return threaded_c.generate(
        source, Target(target.platform, tuple(sorted(options.items())), target.limits), dialect
    )
