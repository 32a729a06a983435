"""The part of a page between two marks, which a script writes again."""

from __future__ import annotations

from pathlib import Path


def put_between(page: str, begin: str, end: str, text: str) -> str:
    """A page with another text between its marks, each on a line of its own.

    Raises
    ------
    ValueError
        If it does not have both marks, in order.
    """
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise ValueError(f"the page has no line {begin!r} with {end!r} below it")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Put a text between the marks of a file; raises as :func:`put_between`."""
    path.write_text(put_between(path.read_text("utf-8"), begin, end, text), "utf-8")
