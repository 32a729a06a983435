"""The key of a result: a hash of its dependencies, and their names and values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_LONGEST: Final = 60
UNKNOWN: Final = "the dependencies of the earlier result were not recorded"


@dataclass(frozen=True)
class ResultKey:
    """The dependencies of a result.

    Attributes
    ----------
    hash
        Hexadecimal hash of all of them; a result is valid if and only if its hash is equal.
    parts
        The dependencies by name: versions and names as text, long values as hashes.
        :func:`what_changed` compares them.
    """

    hash: str
    parts: Mapping[str, str]

    @classmethod
    def of(cls, **parts: str) -> ResultKey:
        """The key of a result whose dependencies are all short.

        >>> ResultKey.of(device="gpu").hash == hash_parts(device="gpu")
        True
        """
        return cls(hash_parts(**parts), parts)


@dataclass(frozen=True)
class Part:
    """The description of a part of a key for the user, and whether to show its value."""

    words: str
    shown: bool = False


def hash_parts(**parts: str) -> str:
    """Hexadecimal SHA-256 of named parts."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def what_changed(
    before: Mapping[str, str], now: ResultKey, known: Mapping[str, Part]
) -> tuple[str, ...]:
    """Which dependencies differ between an earlier result and a new key.

    Parameters
    ----------
    before
        :attr:`~tapml.runs.journal.Result.parts` of the earlier result.
    now
        The key of the new result.
    known
        Descriptions of parts, most informative first. Other parts follow under their names.

    Returns
    -------
    tuple
        Lines such as ``the kernel`` and ``the driver: 3.1 -> 3.2``; empty if nothing differs.

    Examples
    --------
    >>> now = ResultKey.of(driver="3.2", kernel="b")
    >>> known = {"kernel": Part("the kernel"), "driver": Part("the driver", shown=True)}
    >>> what_changed({"driver": "3.1", "kernel": "a"}, now, known)
    ('the kernel', 'the driver: 3.1 -> 3.2')
    """
    if not before:
        return (UNKNOWN,)
    after = now.parts
    names = [*known, *sorted((before.keys() | after.keys()) - known.keys())]
    return tuple(
        _line(known.get(name, Part(name)), before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )


def _line(part: Part, before: str | None, after: str | None) -> str:
    if not part.shown or not before or not after:
        return part.words
    old, new = (_cut(text) for text in _differing(before, after))
    if old == new:
        return part.words
    # The text comes from a driver and may contain control characters.
    return "".join(each if each.isprintable() else "?" for each in f"{part.words}: {old} -> {new}")


def _differing(before: str, after: str) -> tuple[str, str]:
    """The differing entries of ``name version, name version``, each with its name once.

    For drivers' ``text; text``, the first differing text.
    """
    old, new = dict(_versions(before)), dict(_versions(after))
    if old.keys() != new.keys() or "" in old:
        pairs = zip(before.split("; "), after.split("; "), strict=False)
        return next(((a, b) for a, b in pairs if a != b), (before, after))
    changed = [name for name in old if old[name] != new[name]]
    return (
        ", ".join(f"{name} {old[name]}" for name in changed),
        ", ".join(new[name] for name in changed),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _versions(text: str) -> Iterator[tuple[str, str]]:
    for each in text.split(", "):
        name, space, version = each.partition(" ")
        yield (name, version) if space and " " not in version else ("", each)
