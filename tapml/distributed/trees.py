"""Trees: leaves in dictionaries, lists and tuples, changed or made plain data. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tapml_targets.errors import InputError


def map_tree(value: Any, is_leaf: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """The same structure with every leaf changed; what else it holds stays."""
    if is_leaf(value):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tree(item, is_leaf, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        changed = [map_tree(item, is_leaf, change) for item in value]
        return tuple(changed) if isinstance(value, tuple) else changed
    return value


def pack_tree(
    value: Any, place: str, pack_leaf: Callable[[Any, str], dict[str, Any] | None], expected: str
) -> Any:
    """Plain data that :func:`unpack_tree` restores.

    `pack_leaf` gives a dictionary with ``tensor`` for a leaf, None for another value.

    Raises
    ------
    InputError
        If a value is neither a leaf nor None, a number or text; `place` names it.
    """
    leaf = pack_leaf(value, place)
    if leaf is not None:
        return leaf
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}

    def packed(item: Any, key: Any) -> Any:
        return pack_tree(item, f"{place}[{key!r}]", pack_leaf, expected)

    if isinstance(value, Mapping):
        for key in value:
            if not _is_plain_key(key):
                raise InputError(
                    f"{place} has the key {key!r}, a {type(key).__name__}; expected text, numbers, "
                    "None, or tuples of them"
                )
        return {"items": [[key, packed(item, key)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [packed(item, index) for index, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    raise InputError(
        f"{place} is a {type(value).__name__}; expected {expected}, numbers, text and None in "
        "dictionaries, lists and tuples"
    )


def unpack_tree(packed: Any, unpack_leaf: Callable[[Any], Any]) -> Any:
    """The value that :func:`pack_tree` packed."""
    if "tensor" in packed:
        return unpack_leaf(packed)
    if "items" in packed:
        return {_key(key): unpack_tree(item, unpack_leaf) for key, item in packed["items"]}
    for name, made in (("list", list), ("tuple", tuple)):
        if name in packed:
            return made(unpack_tree(item, unpack_leaf) for item in packed[name])
    return packed["value"]


def _is_plain_key(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_plain_key, key))
    return key is None or type(key) in (str, bytes, bool, int, float)


def _key(sent: Any) -> Any:
    """A key as it was: tuples travel as lists."""
    return tuple(map(_key, sent)) if isinstance(sent, list | tuple) else sent
