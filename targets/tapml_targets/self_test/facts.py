"""What a self-test found out about a device: facts with names, as plain data."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from tapml_targets.errors import ProtocolError

REVISION: Final = 2
"""Grows when a fact is measured or worded in another way; other revisions are not compared."""

_Text: TypeAlias = Annotated[str, Meta(max_length=2000)]
_Number: TypeAlias = Annotated[float, Meta(ge=-1e308, le=1e308)]
# How much memory is free says something about the moment.
_PASSING: Final = frozenset(("buffer_bytes",))
_SHORT: Final = 16


@dataclass(frozen=True)
class Fact:
    """One thing that was looked at.

    Attributes
    ----------
    name
        What, such as ``float32_denormal_results``.
    value
        What was found, a number or a word; None where it was not measured.
    unit
        Of `value`; empty for words.
    expected
        What exact IEEE arithmetic, or the driver's own statement, leads one to expect.
    sound
        Whether `value` is as expected; None where it is a property and neither right nor wrong, or
        was not measured.
    source
        ``measured`` by running something, or ``driver``: stated and taken over.
    meaning
        One sentence: what the value means for a model.
    grave
        Whether a model computes wrong numbers where this is unsound. What is unsound and not grave
        makes numbers differ in their last digits.
    trait
        The value in two or three words for a list, such as ``flushes float32 denormals``; empty
        where there is nothing to tell.
    """

    name: _Text
    value: int | _Number | _Text | None
    unit: _Text
    expected: int | _Number | _Text
    sound: bool | None
    source: _Text
    meaning: _Text
    grave: bool = False
    trait: _Text = ""


@dataclass(frozen=True)
class SelfTest:
    """Everything a self-test found.

    Attributes
    ----------
    facts
        In the order in which they were measured.
    problems
        Parts that gave no facts, each with the reason: a kernel that did not build, a driver that
        crashed or hung. A finding as well.
    seconds
        How long it took.
    """

    facts: Annotated[tuple[Fact, ...], Meta(max_length=256)]
    problems: Annotated[tuple[_Text, ...], Meta(max_length=64)] = ()
    seconds: _Number = 0.0

    def fact(self, name: str) -> Fact | None:
        """The fact of that name, None where it is not among them."""
        return next((fact for fact in self.facts if fact.name == name), None)

    def is_unsound(self, name: str) -> bool:
        """Whether the fact was measured and is not what one expects."""
        fact = self.fact(name)
        return fact is not None and fact.sound is False

    @property
    def unsound(self) -> tuple[Fact, ...]:
        """What is not as expected, the grave first."""
        found = [fact for fact in self.facts if fact.sound is False]
        return tuple(sorted(found, key=lambda fact: not fact.grave))

    @property
    def grave(self) -> tuple[Fact, ...]:
        """What makes a model's numbers wrong."""
        return tuple(fact for fact in self.unsound if fact.grave)

    @property
    def traits(self) -> tuple[str, ...]:
        """What there is to tell, in a few words each."""
        return tuple(dict.fromkeys(fact.trait for fact in self.facts if fact.trait))

    @property
    def digest(self) -> str:
        """A short hash of what was found; times and amounts of free memory are left out."""
        lasting = [
            [fact.name, fact.value, fact.sound] for fact in self.facts if fact.name not in _PASSING
        ]
        text = json.dumps([REVISION, lasting, list(self.problems)], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_SHORT]


def changed_facts(before: SelfTest, after: SelfTest) -> tuple[tuple[Fact, Fact], ...]:
    """What both measured with different results, as pairs.

    A fact that only one of them has, or could not measure, says nothing about a change.
    """
    return tuple(
        (old, new)
        for new in after.facts
        if new.name not in _PASSING
        and (old := before.fact(new.name)) is not None
        and None not in (old.value, new.value)
        and (old.value, old.sound) != (new.value, new.sound)
    )


def number(value: float) -> float | str:
    """A number for strict JSON: NaN and Inf as words."""
    return value if math.isfinite(value) else str(value)


def to_plain(self_test: SelfTest) -> dict[str, Any]:
    """`self_test` as maps, lists, numbers and text, with its digest for people."""
    return {
        "revision": REVISION,
        "digest": self_test.digest,
        "facts": [asdict(fact) for fact in self_test.facts],
        "problems": list(self_test.problems),
        "seconds": self_test.seconds,
    }


def from_plain(data: object) -> SelfTest:
    """Read what :func:`to_plain` gave; the digest is computed again.

    Raises
    ------
    ProtocolError
        If it is something else, or was written by another revision.
    """
    if not isinstance(data, dict) or data.get("revision") != REVISION:
        raise ProtocolError(f"expected a self-test of revision {REVISION}; run it again")
    try:
        found = msgspec.convert(data, SelfTest)
    except ValueError as error:
        raise ProtocolError(f"a self-test: {str(error)[:200]}") from None
    if to_plain(found)["facts"] != data["facts"]:
        raise ProtocolError("a fact of a self-test has fields that are missing or not known")
    return found
