"""Imports go one way, `tapml` -> `tapml_rpc` -> `tapml_targets`; the device side stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
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
# The floors of tapml, from the top. A package imports only from floors below its own, also in
# functions and for type checkers; packages on one floor do not know each other.
FLOORS = """
cli pytest_plugin
api
comparing validation
backends inspection matrix
diff invariants distributed
serving
package
offload
kernels
session
bundle
reduce
diagnosis
check
export repro
replaying
failures
carving
suite
oracles
workloads
verdicts
rooting
execute importing
compiler
report
models plan runs
devices durable isolate native_imports own_operators
"""
# Modules that know each other, each group with its reason.
CYCLES: dict[frozenset[str], str] = {
    frozenset(
        f"tapml_rpc.{name}" for name in ("client", "recordings", "remote", "session", "uploads")
    ): "one class, a session, in several files",
    frozenset(f"tapml_rpc.tracker.{name}connection" for name in ("", "websocket_", "zmq_")): (
        "a factory beside its protocol: each binding is imported when it is used"
    ),
    frozenset(f"tapml_rpc.device.{name}" for name in ("commands", "programs")): (
        "the parts of the interpreter name the interpreter for type checkers"
    ),
}
VAGUE_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
LONGEST_MODULE = 600


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


@cache
def imported_names(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of every import, wherever in the file, by statement or by call."""
    return tuple(_imported_names(path))


def _imported_names(path: Path) -> Iterator[tuple[int, str]]:
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
    asked = [
        str(path.relative_to(ROOT))
        for path in all_modules()
        if re.search(r"_part\([^)]*\"codegen\"\)", path.read_text("utf-8"))
    ]
    assert wrong == []
    assert asked == ["tapml/compiler/job.py"]


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


def module_imports() -> Iterator[tuple[str, int, str]]:
    """Yield (module, line, module it imports) within the three packages."""
    names = {
        dotted_name(path).removesuffix(".__init__"): path
        for path in all_modules()
        if path.name != "__main__.py"
    }
    for name, path in names.items():
        for line, imported in imported_names(path):
            module = imported
            while module and module not in names:
                module = module.rpartition(".")[0]
            if module and module != name:
                yield name, line, module


def test_every_package_has_a_floor() -> None:
    listed = set(FLOORS.split())
    there = {
        path.stem
        for path in PACKAGES["tapml"].iterdir()
        if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))
    }
    assert there - {"__init__", "__main__"} == listed


def test_a_package_imports_only_from_floors_below_its_own() -> None:
    rows = FLOORS.strip().splitlines()
    floor = {name: -index for index, row in enumerate(rows) for name in row.split()}
    wrong = []
    for module, line, imported in module_imports():
        user, used = module.split(".")[:2], imported.split(".")[:2]
        if user[0] != "tapml" or len(user) < 2 or user == used or len(used) < 2:
            continue
        if used[0] == "tapml" and floor[user[1]] <= floor[used[1]]:
            wrong.append(f"{module}:{line} imports {imported}")
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    """Imports in functions and for type checkers count: a reader has to follow them, too."""
    graph: dict[str, set[str]] = {}
    for module, _, imported in module_imports():
        # A package's own names are what its modules say; the way through it is no circle.
        if not imported.startswith(f"{module}.") and not module.startswith(f"{imported}."):
            graph.setdefault(module, set()).add(imported)
    assert circles(graph) - set(CYCLES) == set()
    assert set(CYCLES) - circles(graph) == set(), "this circle is gone: take it off the list"


def test_folders_of_the_runtime_do_not_import_each_other() -> None:
    """A module beside the folders stands for itself: both ends and the client are there."""
    folders = {path.name for path in PACKAGES["tapml_rpc"].iterdir() if path.is_dir()}
    graph: dict[str, set[str]] = {}
    for module, _, imported in module_imports():
        user, used = module.split("."), imported.split(".")
        if user[0] == used[0] == "tapml_rpc" and len(user) > 1 < len(used) and user[1] != used[1]:
            graph.setdefault(user[1], set()).add(used[1])
    assert [sorted(group) for group in circles(graph) if group & folders] == []


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules that reach each other."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        found: set[str] = set()
        waiting = [module]
        while waiting:
            for imported in graph.get(waiting.pop(), set()) - found:
                found.add(imported)
                waiting.append(imported)
        reached[module] = found
    return {
        frozenset(other for other in found if module in reached.get(other, set()))
        for module, found in reached.items()
        if module in found
    }


def test_import_tapml_brings_in_nothing_heavy() -> None:
    code = "import sys, tapml; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert "tapml" in loaded
    assert set(loaded) & (HOST_ONLY | {"numpy", "pyopencl", "rich", "zmq"}) == set()


def test_what_family_a_model_is_of_is_known_without_compiler_and_pytorch() -> None:
    code = (
        "import sys; from tapml.models.families import architectures; assert architectures()\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert set(loaded) & HOST_ONLY == set()


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
        "import sys, tapml.offload.session, tapml.offload.context, tapml.offload.migration\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert "tapml_rpc" in loaded
    assert set(loaded) & (HOST_ONLY | {"tvm_ffi"}) == set()


def test_invariants_are_learned_without_importing_pytorch() -> None:
    """It is ten times the rest of the command."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in (PACKAGES["tapml"] / "invariants" / "relations").glob("*.py")
        for line, name in imported_names(path)
        if name.split(".")[0] in HOST_ONLY | {"numpy"}
    ]
    assert wrong == []


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
