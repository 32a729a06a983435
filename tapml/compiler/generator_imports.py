"""What a code generator imports: all that it may read is part of the key of what it makes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

_IMPORT: Final = re.compile(
    rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([\w., \t]+))",
    re.MULTILINE,
)
_COMMENT: Final = re.compile(rb"#[^\n]*")
_WORD: Final = re.compile(rb"\w+")


def imported_sources(begin: Iterable[Path], packages: Mapping[str, Path]) -> list[Path]:
    """The files of `packages` that the files `begin` import, and those that these import.

    Parameters
    ----------
    begin
        Python files.
    packages
        The folder of each package by its name; what lies elsewhere is left out.

    Returns
    -------
    list
        The files, without `begin`, sorted.
    """
    left = list(begin)
    seen = set(left)
    found = set()
    while left:
        for module in _imports(left.pop().read_bytes()):
            path = _file(module, packages)
            if path is not None and path not in seen:
                seen.add(path)
                found.add(path)
                left.append(path)
    return sorted(found)


def _imports(source: bytes) -> Iterator[str]:
    for module, names, plain in _IMPORT.findall(_COMMENT.sub(b"", source)):
        if not module:
            yield from (each.split()[0].decode() for each in plain.split(b",") if each.strip())
            continue
        yield module.decode()
        # A name may be a module.
        yield from (f"{module.decode()}.{each.decode()}" for each in _WORD.findall(names))


def _file(module: str, packages: Mapping[str, Path]) -> Path | None:
    package, _, rest = module.partition(".")
    if package not in packages:
        return None
    place = packages[package].joinpath(*rest.split(".")) if rest else packages[package]
    for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
        if path.is_file():
            return path
    return None
