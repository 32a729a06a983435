"""Every claim of SECURITY.md names a test, and the test is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
TEXT = (TESTS.parent / "rpc_server" / "SECURITY.md").read_text()
REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Names of a file's test functions."""
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_test_that_is_named_is_there() -> None:
    named = REFERENCE.findall(TEXT)
    assert len(named) > 40
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (TESTS / "rpc" / file).exists() or name not in functions_of(TESTS / "rpc" / file)
    ]
    assert not missing


def test_every_defence_names_what_holds_it() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and "held by" not in line]
    claims = [row for row in rows if row.count("|") == 3 and "---" not in row]
    assert len(claims) > 20
    assert [row for row in claims if not REFERENCE.search(row)] == []
