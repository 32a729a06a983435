"""A module as SPIR-V: as it came, or of its GLSL, which is compiled once and kept on disk."""

from __future__ import annotations

import re
from typing import Final

from tapml_targets.errors import CompileError
from tapml_targets.kept_code import KeptCode
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.vulkan.glslang import compile_glsl, compiler_name
from tapml_targets.vulkan_loader.validation import is_checking

_FORMAT: Final = b"tapml-spirv-1"


def spirv_of(module: CodeModule, kernel: Kernel) -> bytes:
    """The SPIR-V of a module, from the cache where it is there.

    Raises
    ------
    CompileError
        If the module has build options or lacks the kernel, or glslang refuses it.
    SetupError
        If it is GLSL and there is no glslang.
    """
    if module.options:
        raise CompileError(
            f"{module.dialect!r} modules have no build option {module.options[0]!r}: there are none"
        )
    if module.kind == "portable":
        return module.code
    try:
        text = module.code.decode()
    except UnicodeDecodeError:
        raise CompileError(f"kernel {kernel.name!r}: GLSL must be UTF-8 text") from None
    if not re.search(rf"\bvoid\s+{re.escape(kernel.symbol)}\s*\(\s*(?:void)?\s*\)", text):
        raise CompileError(
            f"the module has no kernel {kernel.symbol!r}: it is to define "
            f"`void {kernel.symbol}()` and call it in `main`"
        )
    # The layer that checks says which line of the text it means.
    lines = is_checking()
    named = f"{text}\0lines" if lines else text
    kept = KeptCode("spirv", ".spv", _FORMAT, compiler_name(), named)
    return kept.code(lambda: compile_glsl(text, kernel.name, lines=lines))
