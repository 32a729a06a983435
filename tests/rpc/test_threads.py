"""ARCHITECTURE.md says what each thread of the runtime does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tapml_rpc
from tapml_targets import child_process

RUNTIME = Path(tapml_rpc.__file__).parent


def names() -> Iterator[str]:
    """Names of the threads that the runtime starts, and of those of its pools."""
    for path in (*RUNTIME.rglob("*.py"), Path(child_process.__file__)):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).rpartition(".")[2]
                if called == "Thread":
                    (name,) = [each.value for each in node.keywords if each.arg == "name"]
                    yield ast.literal_eval(name)
                elif called == "ThreadPoolExecutor":
                    yield ast.literal_eval(node.args[1])


def test_each_is_in_the_table() -> None:
    table = (RUNTIME.parent / "ARCHITECTURE.md").read_text("utf-8")
    found = set(names())
    assert len(found) > 15
    assert {name for name in found if f"`{name}`" not in table} == set()
