"""Compiles kernel text for this processor, by the clang that PyPI's ``ziglang`` brings.

No C or C++ library is used, so a kernel takes a fifth of a second; what is compiled is kept on disk
under a hash of all that went into it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tapml_targets.cache_folder import cache_folder
from tapml_targets.errors import CompileError, CompilerFailedError, SetupError
from tapml_targets.installed import install_hint, package_version
from tapml_targets.kept_code import KeptCode
from tapml_targets.library import CodeModule
from tapml_targets.platforms import language_of_dialect
from tapml_targets.simulator.dialects import dialect_named

NATIVE: Final = Path(__file__).parent / "native"
KERNEL_FILE: Final = "kernels"
"""The file name of kernel text in messages and line tables."""
_ENTRIES: Final = "entries"
_BEFORE_ENTRIES: Final = f'#line 1 "{_ENTRIES}"\n'

_FLAGS: Final = (
    "-std=c++20", "-ffreestanding", "-nostdinc++", "-fno-exceptions", "-fno-rtti", "-fPIC", "-w",
    "-fno-stack-protector", "-fno-sanitize=undefined", "-fvisibility=hidden",
    "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off", "-Xclang",
    "-ffloat16-excess-precision=none",
    "-ferror-limit=20", "-fno-color-diagnostics", "-Wno-reserved-user-defined-literal",
)  # fmt: skip
# What a thread reads before it has written is something, as in a GPU's registers: TVM's sums pass
# such lanes on, and without this clang takes it that those lanes are not there.
_KERNEL_FLAGS: Final = (
    "-O2", "-gline-tables-only", "-gdwarf-4", "-ftrivial-auto-var-init=pattern",
)  # fmt: skip
_CHECKED_FLAGS: Final = ("-O0", "-gline-tables-only", "-gdwarf-4", "-fsanitize=thread")
_SECONDS: Final = 300
_LOG_CHARACTERS: Final = 20_000
_MACHINES: Final = frozenset({"x86_64", "aarch64"})


def remedy() -> str:
    """What to install where the simulator does not run; empty if it does."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return (
            "kernels are simulated on Linux on x86-64 and aarch64 alone, not on "
            f"{platform.system()} on {platform.machine()}"
        )
    if importlib.util.find_spec("ziglang") is None:
        return f"simulated devices need the compiler of ziglang: {install_hint('simulator')}"
    return ""


def version() -> str:
    """Version of the compiler and state of the simulator, as a driver's version.

    Verdicts are kept by it, so that a mended simulator judges again.

    Raises
    ------
    SetupError
        Without a compiler.
    """
    _compiler()
    return f"ziglang {package_version('ziglang') or 'of its own'}, {_native_state()[:8]}"


@cache
def _compiler() -> str:
    if problem := remedy():
        raise SetupError(problem)
    spec = importlib.util.find_spec("ziglang")
    folder = next(iter(spec.submodule_search_locations or ()), "") if spec else ""
    path = Path(folder) / "zig"
    if not path.is_file():
        raise SetupError(f"ziglang is installed without {path}: reinstall ziglang")
    return str(path)


def built(module: CodeModule, symbols: Sequence[str], *, checked: bool = False) -> ctypes.CDLL:
    """Compile a module, or load what was compiled before.

    Parameters
    ----------
    module
        Kernel text, of a dialect that the simulator runs.
    symbols
        Kernels that are called.
    checked
        Whether every access to memory is checked.

    Raises
    ------
    CompileError
        If the text does not compile; the compiler's messages name its lines.
    SetupError
        If ziglang is missing.
    """
    source = _source(module, symbols)
    kept = KeptCode(
        "simulator", ".so", _native_state(), source, str(checked), version(), _processor()
    )
    code = kept.code(lambda: _compile(source, module.dialect, checked=checked))
    if kept.path is not None and kept.path.exists():
        return _loaded(str(kept.path))
    # There is no cache, or no room in it.
    path = Path(tempfile.mkdtemp(prefix="tapml-simulator-")) / "module.so"
    path.write_bytes(code)
    return _loaded(str(path))


@cache
def _loaded(path: str) -> ctypes.CDLL:
    # The kernels take their mathematics from the C library of this process.
    ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(path)


def _source(module: CodeModule, symbols: Sequence[str]) -> str:
    dialect = dialect_named(module.dialect)
    try:
        text = module.code.decode()
    except UnicodeDecodeError as error:
        raise CompileError(f"kernel text must be UTF-8: {error}") from None
    language = language_of_dialect(module.dialect)
    known = {*dialect.options, *(language.options if language else ())}
    if unknown := sorted(set(module.options) - known):
        raise CompileError(
            f"simulated {module.dialect!r} modules have no build option {unknown[0]!r}; there are "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    defined = "".join(
        f"#define TAPML_{option.replace('-', '_').upper()} 1\n" for option in module.options
    )
    # Entries stand in one line each, behind the text.
    entries = "\n".join(dialect.entry(text, symbol) for symbol in sorted(set(symbols)))
    return (
        f'{defined}#include "{dialect.header}"\n#line 1 "{KERNEL_FILE}"\n{dialect.prepared(text)}\n'
        f"{_BEFORE_ENTRIES}{entries}\n"
    )


@cache
def _native_state() -> str:
    files = sorted(path for path in NATIVE.rglob("*") if path.is_file())
    state = hashlib.sha256("\0".join((*_FLAGS, *_KERNEL_FLAGS, *_CHECKED_FLAGS)).encode())
    for path in files:
        state.update(path.relative_to(NATIVE).as_posix().encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


@cache
def _processor() -> str:
    """The processor as the compiler sees it: objects are made for it alone."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:\s*(.*)$", text, re.MULTILINE)
    return f"{platform.machine()} {' '.join(sorted(set(found)))}"


def _compile(source: str, dialect: str, *, checked: bool) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tapml-simulator-") as name:
        folder = Path(name)
        text = folder / "module.cpp"
        text.write_text(source)
        flags = _CHECKED_FLAGS if checked else _KERNEL_FLAGS
        objects = [folder / "module.o"]
        try:
            _run([*_FLAGS, *flags, "-c", str(text), "-o", str(objects[0])], folder, dialect)
        except CompileError as error:
            if f"{_ENTRIES}:" in str(error):
                # A brace that is missing is missed there, and belongs to the text before.
                text.write_text(source.partition(_BEFORE_ENTRIES)[0])
                _run([*_FLAGS, "-fsyntax-only", str(text)], folder, dialect)
            raise
        for part in ("core", "runtime", "checked" if checked else "unchecked"):
            objects.append(folder / f"{part}.o")
            objects[-1].write_bytes(_part(part))
        made = folder / "module.so"
        _zig(["ld.lld", "-shared", "-o", str(made), *map(str, objects)], folder, dialect)
        return made.read_bytes()


@cache
def _part(name: str) -> bytes:
    """An object of ``native/``, compiled or from the cache."""
    kept = KeptCode("simulator", ".o", _native_state(), name, version(), _processor())
    return kept.code(lambda: _compile_part(name))


def _compile_part(name: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tapml-simulator-") as folder:
        made = Path(folder) / "part.o"
        source = str(NATIVE / f"{name}.cpp")
        _run([*_FLAGS, "-O2", "-c", source, "-o", str(made)], Path(folder), "simulator")
        return made.read_bytes()


def _run(arguments: Sequence[str], folder: Path, dialect: str) -> None:
    includes = ["-I", str(NATIVE / "include"), "-iquote", str(NATIVE)]
    _zig(["c++", *includes, *arguments], folder, dialect)


def _zig(arguments: Sequence[str], folder: Path, dialect: str) -> None:
    environ = dict(os.environ)
    environ["ZIG_LOCAL_CACHE_DIR"] = str(folder / "cache")
    try:
        environ["ZIG_GLOBAL_CACHE_DIR"] = str(cache_folder("simulator", "zig"))
    except OSError:
        environ["ZIG_GLOBAL_CACHE_DIR"] = str(folder / "cache")
    try:
        ended = subprocess.run(
            [_compiler(), *arguments],
            capture_output=True,
            check=False,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise CompileError(
            f"ziglang did not compile the {dialect} kernels within {_SECONDS} s"
        ) from None
    except OSError as error:
        raise SetupError(f"ziglang does not start: {error}; reinstall ziglang") from None
    if ended.returncode < 0:
        raise CompilerFailedError(
            f"ziglang was killed by signal {-ended.returncode} while it compiled {dialect} "
            "kernels (out of memory?)"
        )
    if ended.returncode:
        log = ended.stderr.decode(errors="replace").replace(f"{folder}/", "")
        raise CompileError(f"the {dialect} kernels do not compile:\n{log[:_LOG_CHARACTERS]}")
