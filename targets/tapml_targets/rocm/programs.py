"""HIP C becomes machine code of one architecture, by hiprtc in this process, once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from tapml_targets.cache_folder import cache_folder, write_atomically
from tapml_targets.errors import CompileError, SetupError
from tapml_targets.library import CodeModule
from tapml_targets.rocm.binding import HipError, ask, import_binding
from tapml_targets.rocm.language import BUILD_OPTIONS

_FORMAT: Final = b"tapml-code-object-1"
_FILE: Final = b"kernels.hip"
_DIGEST_BYTES: Final = 32


def compile_code_object(module: CodeModule, architecture: str) -> bytes:
    """The machine code of a module, from the cache where it is there.

    Parameters
    ----------
    module
        Text in HIP C.
    architecture
        As the device names it, with its features: ``gfx90a:sramecc+:xnack-``.

    Raises
    ------
    CompileError
        If hiprtc refuses it, with its log; or an option is unknown.
    SetupError
        If AMD's bindings or hiprtc are missing.
    """
    unknown = [option for option in module.options if option not in BUILD_OPTIONS]
    if unknown:
        raise CompileError(
            f"HIP programs have no build option {unknown[0]!r}; there are "
            f"{', '.join(sorted(BUILD_OPTIONS))}"
        )
    try:
        module.code.decode()
    except UnicodeDecodeError:
        raise CompileError("HIP C must be UTF-8 text") from None
    hiprtc = import_binding("hiprtc")
    try:
        path = _place(module, architecture, _version(hiprtc))
        known = _read(path) if path else None
        if known is not None:
            return known
        code = _compiled(hiprtc, module, architecture)
    except RuntimeError as error:
        # The bindings look for the library when it is first called.
        raise SetupError(
            f"hiprtc, which compiles kernels, is missing ({error}): install AMD's ROCm, or name "
            "its folder in ROCM_PATH"
        ) from None
    if path:
        try:
            write_atomically(path, hashlib.sha256(code).digest() + code)
        except OSError:
            # A full disk costs the cache, not the build.
            path.unlink(missing_ok=True)
    return code


def _compiled(hiprtc: Any, module: CodeModule, architecture: str) -> bytes:
    options = [f"--offload-arch={architecture}".encode()]
    options += [BUILD_OPTIONS[option].encode() for option in module.options]
    # C ends a text at a zero byte, and an empty program is none.
    if not module.code.strip() or b"\0" in module.code:
        raise CompileError("hiprtc compiles text: the module has none, or holds a zero byte")
    try:
        program = ask(hiprtc.hiprtcCreateProgram, module.code, _FILE, 0, None, None)
    except HipError as error:
        raise CompileError(f"hiprtc does not take this module: {error}") from None
    try:
        ask(hiprtc.hiprtcCompileProgram, program, len(options), options)
        code = bytearray(ask(hiprtc.hiprtcGetCodeSize, program))
        ask(hiprtc.hiprtcGetCode, program, code)
    except HipError as error:
        log = bytearray(ask(hiprtc.hiprtcGetProgramLogSize, program))
        if log:
            ask(hiprtc.hiprtcGetProgramLog, program, log)
        words = log.rstrip(b"\0").decode(errors="replace")
        raise CompileError(
            f"hiprtc does not compile this module for {architecture}:\n{words or error}"
        ) from None
    finally:
        # It takes the address of the handle, not the handle.
        hiprtc.hiprtcDestroyProgram(program.createRef())
    return bytes(code)


def _version(hiprtc: Any) -> str:
    status, *numbers = hiprtc.hiprtcVersion()
    return "" if int(status) else ".".join(map(str, numbers))


def _place(module: CodeModule, architecture: str, version: str) -> Path | None:
    digest = hashlib.sha256()
    texts = (version, architecture, *module.options)
    for part in (_FORMAT, *map(str.encode, texts), module.code):
        digest.update(len(part).to_bytes(8, "little") + part)
    try:
        return cache_folder("code-objects") / f"{digest.hexdigest()}.co"
    except OSError:
        return None


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    checksum, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(code).digest() == checksum:
        return code
    path.unlink(missing_ok=True)
    return None
