"""Loads compiled shared objects through apache-tvm-ffi, which is 12 MB and needs no TVM.

A shared object is native code with all rights of this process, so loading one has to be allowed
when the process starts, and never by data from a connection.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tapml_targets.errors import CompileError, SetupError
from tapml_targets.installed import install_hint
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.module_check import check_module

DIALECTS: Final[Mapping[str, ModuleKind]] = MappingProxyType({"elf-shared-object": "machine"})
ALLOW_VARIABLE: Final = "TAPML_ALLOW_SHARED_LIBRARIES"


def import_tvm_ffi() -> Any:
    """Import tvm_ffi without PyTorch, which it would load if installed (three seconds).

    Raises
    ------
    SetupError
        If it is not installed.
    """
    module = sys.modules.get("tvm_ffi")
    if module is not None:
        return module
    hide = "torch" not in sys.modules
    if hide:
        # tvm_ffi imports PyTorch if it can and goes without it if it cannot.
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("tvm_ffi")
    except ImportError as error:
        raise SetupError(
            f"the cpu platform needs apache-tvm-ffi ({error}): {install_hint('cpu')}"
        ) from None
    finally:
        if hide:
            del sys.modules["torch"]


def shared_libraries_allowed() -> bool:
    """Whether this process was started with shared libraries allowed."""
    return os.environ.get(ALLOW_VARIABLE) == "1"


def load_shared_object(
    module: CodeModule, kernels: Sequence[Kernel], *, allowed: bool
) -> dict[str, Any]:
    """Load `module` and look its functions up; the result is keyed by kernel name.

    Raises
    ------
    SetupError
        If shared libraries are not allowed here.
    CompileError
        If the module does not load here, lacks a function or has build options: it is built.
    """
    check_module(module, DIALECTS, "the cpu platform")
    if module.options:
        raise CompileError(
            f"a shared object is built already: it takes no build option {module.options[0]!r}"
        )
    if not allowed:
        raise SetupError(
            "this process does not load shared libraries, because they run with all its rights; "
            f"if the sender is trusted, start it with {ALLOW_VARIABLE}=1"
        )
    tvm_ffi = import_tvm_ffi()
    with tempfile.TemporaryDirectory(prefix="tapml-") as folder:
        # Only this user can enter the folder; a loaded library no longer needs its file.
        path = Path(folder) / "module.so"
        path.write_bytes(module.code)
        try:
            loaded = tvm_ffi.load_module(str(path))
        except (RuntimeError, OSError, ValueError) as error:
            reason = str(error).replace(str(path), "module.so").strip().splitlines()
            raise CompileError(
                f"the shared object does not load here: {reason[-1] if reason else error}; "
                "it must be built for this machine's processor and system"
            ) from None
    functions = {}
    for kernel in kernels:
        try:
            functions[kernel.name] = loaded.get_function(kernel.symbol)
        except AttributeError:
            raise CompileError(f"the shared object has no function {kernel.symbol!r}") from None
    return functions
