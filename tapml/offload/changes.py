"""Why a verdict is made again, in words: what it depends on that is not what it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tapml.offload.verdict_key import VerdictKey

_NAMES: Final = {
    "kernel": "the kernel",
    "operators": "which operators are on the target",
    "kernels": "the kernels on the target",
    "body": "the operator's function",
    "kinds": "what its outputs mean",
    "tests": "the carved tests",
    "trace": "the reference's run",
    "policy": "the policy",
    "driver": "the driver",
    "device": "the device",
    "limits": "the device's limits",
    "details": "the device's details",
    "compiler": "the compiler",
    "torch": "PyTorch",
    "forms": "the torch operators it came from",
    "oracle": "the oracle's version",
    "probes": "the probes' version",
}
"""Parts in the order in which they are told, most telling first."""

_SHOWN: Final = frozenset({"kinds", "driver", "device", "compiler", "torch", "oracle", "probes"})
"""Parts whose values are words and numbers, not hashes."""

_LONGEST: Final = 60
UNKNOWN: Final = "what the verdict depended on then was not kept"


def what_changed(before: Mapping[str, str], now: VerdictKey) -> tuple[str, ...]:
    """What differs between an earlier verdict's parts and a key.

    Parameters
    ----------
    before
        :attr:`~tapml.offload.journal.JournaledVerdict.parts` of the earlier verdict.
    now
        The key its successor is made under.

    Returns
    -------
    tuple
        Lines such as ``the kernel`` and ``the driver: 3.1 -> 3.2``, old and new where they are
        short; empty where nothing differs.
    """
    if not before:
        return (UNKNOWN,)
    after = now.parts
    names = [*_NAMES, *sorted((before.keys() | after.keys()) - _NAMES.keys())]
    return tuple(
        _line(name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )


def _line(name: str, before: str | None, after: str | None) -> str:
    words = _NAMES.get(name, name)
    if name not in _SHOWN or not before or not after:
        return words
    old, new = (_cut(text) for text in _differing(before, after))
    if old == new:
        return words
    # Drivers name themselves; a terminal shows it.
    text = f"{words}: {old} -> {new}"
    return "".join(each if each.isprintable() else "?" for each in text)


def _differing(before: str, after: str) -> tuple[str, str]:
    """Of ``name version, name version`` those that differ, each with its name once.

    Of ``text; text``, as drivers have it, the first that differs.
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
