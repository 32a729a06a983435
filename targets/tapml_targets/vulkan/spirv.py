"""A module as SPIR-V: as it came, or of its GLSL, which is compiled once and kept on disk."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tapml_targets.cache_folder import cache_folder, write_atomically
from tapml_targets.errors import CompileError
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
    kept = f"{text}\0lines" if lines else text
    return _cached(kept, lambda: compile_glsl(text, kernel.name, lines=lines))


def _cached(text: str, build: Callable[[], bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in (_FORMAT, compiler_name().encode(), text.encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    try:
        path = cache_folder("spirv") / f"{digest.hexdigest()}.spv"
    except OSError:
        return build()
    known = _read(path)
    if known is not None:
        return known
    code = build()
    try:
        write_atomically(path, hashlib.sha256(code).digest() + code)
    except OSError:
        # A full disk costs the cache, not the build.
        path.unlink(missing_ok=True)
    return code


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    checksum, code = data[:32], data[32:]
    if hashlib.sha256(code).digest() == checksum:
        return code
    path.unlink(missing_ok=True)
    return None
