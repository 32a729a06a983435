"""The files that a user's Python file imports from its folder. They are read, not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def imported_beside(path: Path) -> dict[str, Path]:
    """The files beside a Python file that its import statements name, wherever they stand.

    Returns
    -------
    dict
        Paths by how they are called from the file's folder, and what those files import from there.
    """
    found: dict[str, Path] = {}
    waiting = [path]
    while waiting:
        user = waiting.pop()
        try:
            tree = ast.parse(user.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # What cannot be read cannot be imported, and says so then.
        for level, name in _imported(tree):
            folder = (
                path.parent if level == 0 else Path(user.parent, *[".."] * (level - 1)).resolve()
            )
            for origin in _files_of(folder, name):
                inside = origin.is_relative_to(path.parent) and origin != path
                if inside and origin not in found.values() and origin.is_file():
                    found[str(origin.relative_to(path.parent))] = origin
                    waiting.append(origin)
    return found


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names, with the count of their leading dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = f"{node.module}." if node.module else ""
            if node.module:
                yield node.level, node.module
            yield from ((node.level, f"{around}{each.name}") for each in node.names)


def _files_of(folder: Path, name: str) -> Iterator[Path]:
    """Where a module and the packages around it would lie."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:count])
        yield from (place.with_suffix(".py"), place / "__init__.py")
