"""Kernels in HIP C, all of them in one module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tapml_targets.conformance_kernels import KernelText
from tapml_targets.library import CodeModule
from tapml_targets.threaded_c.kernels import BROKEN, broken, conformance

__all__ = ["BROKEN", "POINTERS", "broken", "modules"]

POINTERS: Final = True


def modules(kernels: Sequence[KernelText]) -> tuple[CodeModule, ...]:
    """See :class:`tapml_targets.conformance_kernels.KernelTable`."""
    return conformance("hip-c", kernels)
