"""CUDA C becomes machine code of one architecture, by NVRTC in this process, once.

A cubin of the device's own architecture is loaded by older drivers as well, where the portable code
of a newer NVRTC is not.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from tapml_targets.cuda.language import BUILD_OPTIONS
from tapml_targets.cuda.sanitizer import is_watched
from tapml_targets.errors import CompileError, SetupError
from tapml_targets.installed import install_hint
from tapml_targets.kept_code import KeptCode
from tapml_targets.library import CodeModule

_FORMAT: Final = b"tapml-cubin-1"
_FILE: Final = "kernels.cu"
# 26 MB of headers, once: only texts that include one need them.
_HEADERS: Final = b"#include <cuda_"
_FRAGMENTS: Final = b"#include <mma.h>"
_BUNDLED_SINCE: Final = (13, 3)
"""NVRTC that brings these headers, as cuda-core has it."""


def compile_cubin(module: CodeModule, architecture: str) -> bytes:
    """The machine code of a module, from the cache where it is there.

    Parameters
    ----------
    module
        Text in CUDA C.
    architecture
        ``sm_90``.

    Raises
    ------
    CompileError
        If NVRTC refuses it, with its log; or an option is unknown.
    SetupError
        If cuda-core, NVRTC or its headers are missing, or NVRTC is too old to bring headers.
    """
    unknown = [option for option in module.options if option not in BUILD_OPTIONS]
    if unknown:
        raise CompileError(
            f"CUDA programs have no build option {unknown[0]!r}; there are "
            f"{', '.join(sorted(BUILD_OPTIONS))}"
        )
    try:
        text = module.code.decode()
    except UnicodeDecodeError:
        raise CompileError("CUDA C must be UTF-8 text") from None
    # A checker names lines of the text.
    lines = ("lineinfo",) if is_watched() else ()
    return KeptCode(
        "cubins",
        ".cubin",
        _FORMAT,
        _compiler_version(),
        architecture,
        *module.options,
        *lines,
        *_other_headers(module),
        module.code,
    ).code(lambda: _compiled(text, module, architecture))


def _compiled(text: str, module: CodeModule, architecture: str) -> bytes:
    core = _core()
    options: dict[str, Any] = {"lineinfo": True} if is_watched() else {}
    for option in module.options:
        options |= BUILD_OPTIONS[option]
    if _includes(module):
        folder = _header_folder()
        options |= {"include_path": [folder]} if folder else {"use_bundled_headers": True}
    try:
        program = core.Program(
            text, "c++", core.ProgramOptions(name=_FILE, arch=architecture, **options)
        )
        return bytes(program.compile("cubin").code)
    except Exception as error:
        missing = _missing(error)
        if missing:
            raise SetupError(f"{missing}: {install_hint('cuda')}") from None
        raise CompileError(f"NVRTC does not compile this module:\n{error}") from None


def _missing(error: Exception) -> str:
    """What of NVRTC is not there, by what cuda-core 1.2 and NVRTC say; empty if all of it is."""
    said = str(error)
    if said.startswith('Failure finding "libnvrtc'):
        return "NVRTC, which compiles kernels, is missing"
    old = re.match(r"use_bundled_headers requires NVRTC >= ([\d.]*\d), but found ([\d.]*\d)", said)
    if old:
        return (
            f"the NVRTC found here is {old[2]}, and the headers of half precision and tensor cores "
            f"come with {old[1]} and later; the package nvidia-cuda-nvrtc brings one, and the "
            "packages nvidia-cuda-runtime and nvidia-cuda-crt have those of an older one"
        )
    part = re.search(r"(?:cannot|could not) open source file \"(crt/[\w./]+)\"", said)
    if part:
        return (
            f"{part[1]}, which tensor cores need, is not beside the other headers of CUDA; the "
            "package nvidia-cuda-crt of NVRTC's version has it"
        )
    builtins = re.search(r"libnvrtc-builtins\.so[.\d]*\d", said)
    if builtins:
        return (
            f"NVRTC is here, but not the {builtins[0]} that belongs to it; the package "
            "nvidia-cuda-nvrtc has both"
        )
    return ""


def _includes(module: CodeModule) -> bool:
    return _HEADERS in module.code or _FRAGMENTS in module.code


@cache
def _header_folder() -> str:
    """CUDA's headers for an NVRTC that brings none: of a package or a toolkit; "" without any."""
    version = tuple(int(part) for part in _compiler_version().split(".") if part)
    if not version or version >= _BUNDLED_SINCE:
        return ""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        return str(pathfinder.find_nvidia_header_directory("cudart") or "")
    except Exception:
        return ""


def _other_headers(module: CodeModule) -> tuple[str, ...]:
    """What tells one installation's headers from another's, where NVRTC's own are not taken."""
    folder = _header_folder() if _includes(module) else ""
    return _headers_in(folder) if folder else ()


@cache
def _headers_in(folder: str) -> tuple[str, ...]:
    found = [folder]
    for path in sorted(each for part in ("*.h*", "crt/*.h*") for each in Path(folder).glob(part)):
        told = path.stat()
        found.append(f"{path.name} {told.st_size} {told.st_mtime_ns}")
    return tuple(found)


def _core() -> Any:
    try:
        return importlib.import_module("cuda.core")
    except ImportError as error:
        raise SetupError(
            f"CUDA C is compiled by cuda-core and NVRTC ({error}): {install_hint('cuda')}"
        ) from None


@cache
def _compiler_version() -> str:
    try:
        bindings = importlib.import_module("cuda.bindings.nvrtc")
        return ".".join(map(str, bindings.nvrtcVersion()[1:]))
    except Exception:
        return ""
