"""The model's time from its operators' times: totals per entry, shares, and slow operators.

It works on the data of :mod:`tapml.replaying.times` in ``report.json``, so it needs only the base
install.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Final

# An operator is an outlier if its ratio is this many times that of its entry, and it takes at least
# this share of the entry's time on the target; smaller shares are not worth work.
SLOW_FACTOR: Final = 3.0
SLOW_SHARE: Final = 0.05
_WHOLE: Final = 10


def model_times(operators: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum the times of the operators.

    Parameters
    ----------
    operators
        The operators of ``report.json``; uses ``name`` and ``times``
        (:func:`tapml.replaying.times.operator_times`; missing or empty if not replayed).

    Returns
    -------
    dict
        ``entries``: for each entry of the plan, ``target_ms`` and ``reference_ms`` of one run,
        their ``ratio``, ``operators`` (``name``, ``calls``, both times, ``ratio``, and ``share`` of
        the entry's time on the target, largest first), and ``untimed``, names of operators with
        call sites but no test there. ``untimed``: names of operators without any time; the sums do
        not include them. ``clock``: the clocks of the target's times, empty without times.
        ``slow``: outliers as ``{"name", "entry", "ratio", "share", "model_ratio"}``, largest ratio
        first. ``slow_rule``: the definition of an outlier, as text.
    """
    entries: dict[str, dict[str, Any]] = {}
    clocks: dict[str, None] = {}
    untimed: list[str] = []
    for operator in operators:
        times = operator.get("times") or {}
        if _number(times.get("target_ms")) is None:
            untimed.append(str(operator["name"]))
        else:
            clocks[str(times.get("clock", ""))] = None
        for name, data in (times.get("entries") or {}).items():
            _add(entries.setdefault(name, _empty()), str(operator["name"]), data)
    for entry in entries.values():
        _close(entry)
    return {
        "entries": entries,
        "untimed": untimed,
        "clock": ", ".join(clocks),
        "slow": _slow(entries),
        "slow_rule": f"at least {SLOW_FACTOR:g} times the ratio of the entry and "
        f"{SLOW_SHARE:.0%} of its time on the target",
    }


def slowest_line(times: Mapping[str, Any]) -> str:
    """A sentence about the slowest outlier; empty if there is none.

    >>> slowest_line({"slow": [{"name": "take", "entry": "decode", "ratio": 14.2, "share": 0.31}]})
    'slowest against the reference: take 14 x (31 % of decode)'
    """
    if not times.get("slow"):
        return ""
    worst = times["slow"][0]
    return (
        f"slowest against the reference: {worst['name']} {multiple(worst['ratio'])} x "
        f"({worst['share'] * 100:.0f} % of {worst['entry']})"
    )


def multiple(ratio: float) -> str:
    """A ratio as text, with two significant digits or as an integer.

    >>> multiple(1.234), multiple(1234.5)
    ('1.2', '1,234')
    """
    text = f"{ratio:.2g}"
    return text if float(text) < _WHOLE else f"{ratio:,.0f}"


def _empty() -> dict[str, Any]:
    return {"target_ms": 0.0, "reference_ms": 0.0, "ratio": None, "operators": [], "untimed": []}


def _add(entry: dict[str, Any], name: str, data: Mapping[str, Any]) -> None:
    target, reference = _number(data.get("target_ms")), _number(data.get("reference_ms"))
    if target is None or reference is None:
        entry["untimed"].append(name)
        return
    entry["target_ms"] += target
    entry["reference_ms"] += reference
    entry["operators"].append(
        {
            "name": name,
            "calls": data["calls"],
            "target_ms": target,
            "reference_ms": reference,
            "ratio": _ratio(target, reference),
        }
    )


def _close(entry: dict[str, Any]) -> None:
    entry["ratio"] = _ratio(entry["target_ms"], entry["reference_ms"])
    for operator in entry["operators"]:
        operator["share"] = _ratio(operator["target_ms"], entry["target_ms"]) or 0.0
    entry["operators"].sort(key=lambda operator: -operator["target_ms"])


def _slow(entries: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = [
        {
            "name": operator["name"],
            "entry": name,
            "ratio": operator["ratio"],
            "share": operator["share"],
            "model_ratio": entry["ratio"],
        }
        for name, entry in entries.items()
        if entry["ratio"]
        for operator in entry["operators"]
        if operator["ratio"] is not None
        and operator["ratio"] >= SLOW_FACTOR * entry["ratio"]
        and operator["share"] >= SLOW_SHARE
    ]
    return sorted(found, key=lambda each: -each["ratio"])


def _ratio(number: float, by: float) -> float | None:
    return float(f"{number / by:.6g}") if by > 0 else None


def _number(value: object) -> float | None:
    """A time, or None if it is not a finite number: the data may be from an older session."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else None
