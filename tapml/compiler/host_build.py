"""Compiles PrimFuncs to machine code of this process: one cached shared object for all.

Without a linker the code is compiled in memory at every start.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tapml.compiler.cache import DiskCache, generator_hash, joint_hash
from tapml.compiler.reference_module import REFERENCE_CACHE, REFERENCE_SUFFIX
from tapml.compiler.reference_sorts import call_own_sorts
from tapml_targets.codegen.host_linker import link_shared_object
from tapml_targets.codegen.host_mathematics import call_c_library
from tapml_targets.codegen.host_schedule import (
    host_target,
    is_slow_to_reassociate,
    schedule_for_host,
)
from tapml_targets.codegen.lowering import load_function, refusal
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import CompileError
from tapml_targets.installed import compiler_versions


@dataclass(frozen=True)
class HostFunction:
    """A PrimFunc as TVM JSON, and its symbol."""

    symbol: str
    function: str


@dataclass
class HostBuild:
    """Callable functions by name, and errors of the others.

    `key` identifies the cached shared object with all functions; empty if there is none.
    """

    functions: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, CompileError] = field(default_factory=dict)
    key: str = ""


def build_host_functions(functions: Mapping[str, HostFunction]) -> HostBuild:
    """Compile functions together, or one by one if any of them fails to compile."""
    if not functions:
        return HostBuild()
    cache = DiskCache(REFERENCE_CACHE, suffix=REFERENCE_SUFFIX)
    key = _key(functions)
    kept = _load(cache, key)
    if kept is not None:
        return HostBuild({name: kept[f.symbol] for name, f in functions.items()}, key=key)
    try:
        modules = _compile(functions)
        kept = _keep(cache, key, dict.fromkeys(modules.values()))
    except (RuntimeError, ValueError, TypeError, CompileError):
        # One failure must not affect the other functions: find which one it is.
        return _one_by_one(functions)
    if kept is not None:
        modules = dict.fromkeys(functions, kept)
    return HostBuild(
        {name: modules[name][f.symbol] for name, f in functions.items()},
        key="" if kept is None else key,
    )


def host_identity() -> str:
    """Identifies the compiler, code generators and processor that host code depends on."""
    return joint_hash((compiler_versions(), generator_hash("cpu"), str(host_target())))


def _one_by_one(functions: Mapping[str, HostFunction]) -> HostBuild:
    build = HostBuild()
    for name, function in functions.items():
        try:
            build.functions[name] = _compile({name: function})[name][function.symbol]
        except CompileError as error:
            build.failures[name] = CompileError(f"operator {name!r}: {error}")
        except (RuntimeError, ValueError, TypeError) as error:
            build.failures[name] = CompileError(
                f"operator {name!r} does not compile for this CPU: {refusal(error)}"
            )
    return build


def _compile(functions: Mapping[str, HostFunction]) -> dict[str, Any]:
    """The module of each function: at most two modules, one per target."""
    parts: dict[bool, dict[str, Any]] = {}
    where: dict[str, bool] = {}
    for name, function in functions.items():
        loaded = load_function(OperatorSource(name, function.function, ()))
        scheduled = schedule_for_host(call_c_library(call_own_sorts(loaded)))
        where[name] = slow = is_slow_to_reassociate(scheduled, host_target())
        named = scheduled.with_attr("global_symbol", function.symbol)
        parts.setdefault(slow, {})[function.symbol] = named
    built = {
        slow: tirx.build(tvm.IRModule(part), target=host_target(reassociates=not slow))
        for slow, part in parts.items()
    }
    return {name: built[slow] for name, slow in where.items()}


def _key(functions: Mapping[str, HostFunction]) -> str:
    texts = (text for f in functions.values() for text in (f.symbol, f.function))
    return joint_hash((host_identity(), *texts))


def _load(cache: DiskCache, key: str) -> Any:
    path = cache.file(key)
    if path is None:
        return None
    try:
        return tvm_ffi.load_module(str(path))
    except RuntimeError:
        # A library it was linked against is gone: compile again.
        cache.remove(key)
        return None


def _keep(cache: DiskCache, key: str, modules: Iterable[Any]) -> Any:
    """Cache the modules and load them as one, which avoids compiling again; None if that fails."""
    with tempfile.TemporaryDirectory(prefix="tapml-") as folder:
        objects = []
        for index, module in enumerate(modules):
            path = Path(folder) / f"reference_{index}.o"
            module.write_to_file(str(path))
            objects.append(path.read_bytes())
        try:
            linked = link_shared_object(*objects)
        except CompileError:
            # No linker here.
            return None
    cache.put(key, linked)
    return _load(cache, key)
