"""Shrinks a failing conversation to what the failure needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Item = TypeVar("_Item")


def shrink(items: list[_Item], fails: Callable[[list[_Item]], bool], tries: int) -> list[_Item]:
    """A shorter list that still fails, by taking out halves, quarters and single items.

    Parameters
    ----------
    items
        A list that fails.
    tries
        How often `fails` may be asked.
    """
    size = max(1, len(items) // 2)
    while tries > 0:
        position, smaller = 0, False
        while position < len(items) and tries > 0:
            without = items[:position] + items[position + size :]
            tries -= 1
            if without and fails(without):
                items, smaller = without, True
            else:
                position += size
        if size == 1 and not smaller:
            break
        size = max(1, size // 2)
    return items
