"""GLSL as SPIR-V, for devices without glslang."""

from __future__ import annotations

from dataclasses import replace

from tapml_targets.errors import SetupError
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.vulkan.spirv import spirv_of


def as_portable(module: CodeModule, kernel: Kernel) -> CodeModule | None:
    """See :func:`tapml_targets.portable.in_portable_code`."""
    try:
        return replace(module, dialect="spirv", kind="portable", code=spirv_of(module, kernel))
    except SetupError:
        return None
