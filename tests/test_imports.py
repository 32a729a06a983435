"""Imports go one way, `tapml` -> `tapml_rpc` -> `tapml_targets`; the device side stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "tapml": ROOT / "tapml",
    "tapml_rpc": ROOT / "rpc_server" / "tapml_rpc",
    "tapml_targets": ROOT / "targets" / "tapml_targets",
}
HOST_ONLY = {"safetensors", "tokenizers", "torch", "transformers", "tvm"}
FORBIDDEN = {
    "tapml": set(),
    "tapml_rpc": {"tapml"} | HOST_ONLY,
    "tapml_targets": {"tapml", "tapml_rpc"} | HOST_ONLY,
}
VAGUE_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
LONGEST_MODULE = 400


def modules_of(package: str) -> list[Path]:
    """Every Python file of a package."""
    return sorted(PACKAGES[package].rglob("*.py"))


def all_modules() -> list[Path]:
    """Every Python file of the three packages."""
    return [path for package in PACKAGES for path in modules_of(package)]


def dotted_name(path: Path) -> str:
    """The name a module is imported by."""
    for package, folder in PACKAGES.items():
        if path.is_relative_to(folder):
            return ".".join([package, *path.relative_to(folder).with_suffix("").parts])
    return path.stem


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import, wherever in the file, by statement or by call."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = dotted_name(path).split(".")
            base = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            prefix = ".".join(filter(None, [base, node.module or ""]))
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func).rpartition(".")[2]
            if function in {"import_module", "__import__"} and node.args:
                yield node.lineno, ast.unparse(node.args[0]).strip("'\"").removeprefix("f'")


def may_import_tvm(path: Path) -> bool:
    """Whether a file of the device side is a code generator, which only the host imports."""
    return (
        path.is_relative_to(PACKAGES["tapml_targets"]) and "codegen" in path.with_suffix("").parts
    )


def test_the_packages_have_modules_to_look_at() -> None:
    for package, folder in PACKAGES.items():
        assert modules_of(package), f"no module of {package} under {folder}"


@pytest.mark.parametrize("package", ["tapml_targets", "tapml_rpc"])
def test_lower_packages_import_neither_the_upper_ones_nor_the_compiler(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules_of(package)
        for line, name in imported_names(path)
        if name.split(".")[0] in FORBIDDEN[package]
        and not (may_import_tvm(path) and name.split(".")[0] == "tvm")
    ]
    assert wrong == []


def test_code_generators_are_imported_by_the_compiler_alone() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in all_modules()
        if not path.is_relative_to(ROOT / "tapml" / "compiler") and not may_import_tvm(path)
        for line, name in imported_names(path)
        if re.match(r"tapml_targets\.[^.]+\.codegen\b", name)
    ]
    assert wrong == []


def test_what_code_generators_share_stays_on_the_host() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for package in ("tapml_rpc", "tapml_targets")
        for path in modules_of(package)
        if not may_import_tvm(path)
        for line, name in imported_names(path)
        if "codegen" in name.split(".")
    ]
    assert wrong == []


def test_import_tapml_brings_in_nothing_heavy() -> None:
    code = "import sys, tapml; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert "tapml" in loaded
    assert set(loaded) & (HOST_ONLY | {"numpy", "pyopencl", "rich", "zmq"}) == set()


def test_importing_the_server_brings_in_neither_compiler_nor_pytorch() -> None:
    code = (
        "import importlib, pkgutil, sys, tapml_rpc, tapml_targets.platforms\n"
        "for module in pkgutil.walk_packages(tapml_rpc.__path__, 'tapml_rpc.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert "tapml_rpc" in loaded
    assert set(loaded) & FORBIDDEN["tapml_rpc"] == set()


def test_a_session_is_opened_and_run_without_importing_compiler_or_pytorch() -> None:
    """A resumed session needs them when a step does, and begins in a tenth of their time."""
    code = (
        "import sys, tapml.offload.session, tapml.offload.workbench, tapml.offload.migration\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert "tapml_rpc" in loaded
    assert set(loaded) & (HOST_ONLY | {"tvm_ffi"}) == set()


def test_modules_can_be_read_at_a_sitting() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in all_modules()}
    long = {
        str(path.relative_to(ROOT)): lines
        for path, lines in lengths.items()
        if lines > LONGEST_MODULE
    }
    assert long == {}


def test_a_name_says_what_a_module_holds() -> None:
    vague = [
        str(path.relative_to(ROOT))
        for path in all_modules()
        for part in path.relative_to(ROOT).with_suffix("").parts
        if VAGUE_NAMES & set(part.split("_"))
    ]
    assert vague == []
