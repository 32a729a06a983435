"""The kernel that shows whether a ROCm device works, and how fast it is."""

from __future__ import annotations

from tapml_targets.library import Library
from tapml_targets.rocm.prologue import PROLOGUE
from tapml_targets.threaded_c.kernels import probe


def probe_library(dtype: str) -> Library:
    """The probe's Library; see :mod:`tapml_targets.probe_kernel`.

    Raises
    ------
    InputError
        If kernels cannot compute in `dtype`.
    """
    return probe("rocm", "hip-c", dtype, PROLOGUE.of("half" if dtype == "float16" else ""))
