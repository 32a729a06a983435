"""HIP C becomes machine code of one architecture, by hiprtc in this process, once."""

from __future__ import annotations

from typing import Any, Final

from tapml_targets.errors import CompileError, SetupError
from tapml_targets.kept_code import KeptCode
from tapml_targets.library import CodeModule
from tapml_targets.rocm.binding import HipError, ask, import_binding
from tapml_targets.rocm.language import BUILD_OPTIONS

_FORMAT: Final = b"tapml-code-object-1"
_FILE: Final = b"kernels.hip"


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
        return KeptCode(
            "code-objects",
            ".co",
            _FORMAT,
            _version(hiprtc),
            architecture,
            *module.options,
            module.code,
        ).code(lambda: _compiled(hiprtc, module, architecture))
    except RuntimeError as error:
        # The bindings look for the library when it is first called.
        raise SetupError(
            f"hiprtc, which compiles kernels, is missing ({error}): install AMD's ROCm, or name "
            "its folder in ROCM_PATH"
        ) from None


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
