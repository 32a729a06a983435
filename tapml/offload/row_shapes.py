"""What the rows of a journal look like: a row of another shape counts as not there.

A journal is an ordinary database, so it gets edited, merged and restored by hand. Whoever reads a
verdict relies on its numbers being numbers; this is held against the row once, where it is read. A
field that an older tapml did not write is no fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

_LONGEST: Final = 40


@dataclass(frozen=True)
class _Must:
    """A field that has to be there."""

    shape: Shape


@dataclass(frozen=True)
class _Each:
    """An object whose every value has a shape, whatever it is called."""

    shape: Shape


Shape: TypeAlias = "Callable[[object], str] | Mapping[str, Any] | list[Any] | _Must | _Each"
"""A check that says what it expected, an object by field, a list of one shape, or a wrapper."""


def _of(words: str, *kinds: type, none: bool = False) -> Callable[[object], str]:
    def check(value: object) -> str:
        # A bool is an int in Python alone.
        right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        return "" if right or (none and value is None) else words

    return check


def _real(value: object) -> str:
    """A number, or one that JSON lacks, as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return "a number"
    try:
        float(value)
    except (ValueError, OverflowError):
        return "a number"
    return ""


def _finite(value: object) -> str:
    return _real(value) or ("" if math.isfinite(float(str(value))) else "a finite number")


_TEXT: Final = _of("text", str)
_COUNT: Final = _of("a whole number", int)
_NUMBER: Final = _of("a number", int, float)
_NUMBER_OR_NONE: Final = _of("a number or null", int, float, none=True)
_OBJECT: Final = _of("an object", dict)
_TEXTS: Final = [_TEXT]

_MOVED: Final = _Each(dict.fromkeys(("runs", "moved", "minimum"), _COUNT))
_TIMES: Final = {
    "target_ms": _NUMBER_OR_NONE,
    "reference_ms": _NUMBER_OR_NONE,
    "ratio": _NUMBER_OR_NONE,
    "clock": _TEXT,
    "entries": _Each(
        {
            "calls": _Must(_COUNT),
            "tests": _COUNT,
            "target_ms": _NUMBER_OR_NONE,
            "reference_ms": _NUMBER_OR_NONE,
        }
    ),
}
_OUTPUT: Final = {
    **{name: _Must(_real) for name in ("expected", "actual", "ratio")},
    **{name: _Must(_finite) for name in ("passing", "degraded")},
    "reason": _TEXT,
}
_VERDICTS: Final[Mapping[str, Shape]] = {
    "operator": {
        "status": _TEXT,
        "tests": _COUNT,
        "passed": _COUNT,
        "probes": _COUNT,
        "worst_ratio": _NUMBER_OR_NONE,
        "worst_test": _TEXT,
        "worst": {"outputs": [_OUTPUT]},
        "suspects": _TEXTS,
        "reason": _TEXT,
        "kernel_ms": _NUMBER_OR_NONE,
        "kernel": _TEXT,
        "written": _TEXT,
        "times": _TIMES,
        "picture": _OBJECT,
    },
    "model": {"status": _TEXT, "reason": _TEXT, "moved_bytes": _MOVED, "room": _COUNT},
    "final": {
        "status": _TEXT,
        "headline": _Must(_TEXT),
        "text": _Must(_TEXT),
        "logits": _OBJECT,
        "prompts": [{"text": _TEXT, "tokens": [_COUNT]}],
    },
}
_EVENTS: Final[Mapping[str, Shape]] = {
    "phase": {
        "name": _TEXT,
        "seconds": _NUMBER,
        "group": _TEXT,
        "platform": _TEXT,
        "detail": _TEXT,
    },
    "failed": {"operator": _Must(_TEXT), "reason": _Must(_TEXT), "key": _TEXT},
    "migrated": {"from": _Must(_COUNT), "to": _Must(_COUNT), "copy": _Must(_TEXT)},
    "moved_bytes": _MOVED,
    "passed over": {"rows": _Must(_TEXTS)},
    "strategy": {
        "promised": _COUNT,
        "model_runs": _COUNT,
        "from_journal": _COUNT,
        "culprits": [_TEXTS],
        "memory": _Each(_NUMBER),
    },
    "verdicts": {"kept": _COUNT, "again": _COUNT, "first": _COUNT, "why": _Each(_COUNT)},
    "rooted": {"operators": _Each(_NUMBER_OR_NONE)},
}


def fault_of_verdict(stage: str, data: Mapping[str, Any]) -> str:
    """What of a verdict's data is not as tapml writes it, in words; empty where all is."""
    return _fault(data, _VERDICTS.get(stage, {}), "")


def fault_of_event(kind: str, data: Mapping[str, Any]) -> str:
    """The same of an event's data."""
    return _fault(data, _EVENTS.get(kind, {}), "")


def fault_of_parts(parts: Mapping[str, Any]) -> str:
    """The same of what a verdict depends on."""
    return _fault(parts, _Each(_TEXT), "")


def _fault(value: object, shape: Shape, place: str) -> str:
    if isinstance(shape, _Must):
        return _fault(value, shape.shape, place)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _said(place, "a list", value)
        faults = (_fault(each, shape[0], f"{place}[{i}]") for i, each in enumerate(value))
        return next(filter(None, faults), "")
    if callable(shape):
        expected = shape(value)
        return _said(place, expected, value) if expected else ""
    if not isinstance(value, dict):
        return _said(place, "an object", value)
    if isinstance(shape, _Each):
        pairs = [(name, shape.shape) for name in value]
    else:
        pairs = [(n, s) for n, s in shape.items() if n in value or isinstance(s, _Must)]
    for name, inner in pairs:
        inside = f"{place}.{name}" if place else str(name)
        if name not in value:
            return f"{inside[-_LONGEST:]} is missing"
        fault = _fault(value[name], inner, inside)
        if fault:
            return fault
    return ""


def _said(place: str, expected: str, value: object) -> str:
    return f"{place[-_LONGEST:]}: expected {expected}, got {repr(value)[:_LONGEST]}"
