"""Numbers as people read them."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """A number with a noun.

    >>> counted(1, "test"), counted(2, "test"), counted(0, "process")
    ('1 test', '2 tests', '0 processes')
    """
    ending = "" if count == 1 else "es" if thing.endswith("s") else "s"
    return f"{count} {thing}{ending}"


def duration(seconds: float) -> str:
    """A duration as text in a suitable unit.

    >>> duration(75), duration(600), duration(9000)
    ('75 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
