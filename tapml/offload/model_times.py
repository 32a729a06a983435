"""The model's time from its operators' times: totals by entry, shares, what is slow out of line.

Works on the data of :mod:`tapml.offload.times` alone, as ``report.json`` holds it, so it needs the
base install only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Final

# An operator is slow out of line where its ratio is so many times that of the whole entry, and it
# takes so much of the entry's time on the target: less is nothing to work on.
SLOW_FACTOR: Final = 3.0
SLOW_SHARE: Final = 0.05
_WHOLE: Final = 10


def model_times(operators: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum operators to the model.

    Parameters
    ----------
    operators
        The operators of ``report.json``: of each ``name`` and ``times``
        (:func:`tapml.offload.times.operator_times`; missing or empty where it was not replayed).

    Returns
    -------
    dict
        ``entries``: per entry of the plan ``target_ms`` and ``reference_ms`` of one run, their
        ``ratio``, ``operators`` (``name``, ``calls``, both times, ``ratio``, and ``share`` of the
        entry's time on the target, largest first), and ``untimed``, the names of those that have
        call sites there and no test. ``untimed``: the names of operators without any time. Sums
        are of the others. ``clock``: that of the target's times, both where they differ; empty
        without times. ``slow``: operators out of
        line as ``{"name", "entry", "ratio", "share", "model_ratio"}``, largest ratio first;
        ``slow_rule`` says what that means.
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
        "slow_rule": f"at least {SLOW_FACTOR:g} times the ratio of the whole entry and "
        f"{SLOW_SHARE:.0%} of its time on the target",
    }


def slowest_line(times: Mapping[str, Any]) -> str:
    """The operator that is slow out of line, in words; empty where none is.

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
    """How many times as long something takes: two digits, or a whole number."""
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
    """A time, or None for what is none: the data may be an older session's."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else None
