"""One operator as the report's data: what it is, how it came out, what it took to get there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from tapml.plan.graph_plan import GraphPlan, Operator
from tapml.runs.result_key import ResultKey
from tapml.session.changes import what_changed
from tapml.verdicts.operator_class import traits_of
from tapml_targets.errors import TapmlError
from tapml_targets.expression import render

if TYPE_CHECKING:
    from tapml.runs.journal import Journal, Result
    from tapml.session.operator_record import OperatorRecord

_ORIGINS_SHOWN: Final = 24
_SCRIPT: Final = "repro.py"
_ATTEMPTS_SHOWN: Final = 50
_NUMBER: Final = re.compile(r"\d+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


def operator_data(
    plan: GraphPlan, record: OperatorRecord, attempts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Everything known about an operator, as strict JSON data."""
    operator = record.operator
    replay = dict(record.replay)
    times, picture = replay.pop("times", None), replay.pop("picture", None)
    worst = replay.get("worst", {}).get("outputs", [])
    # Strict JSON has no number for a NaN or an Inf out of place; the verdict's reason names it.
    absolute = [abs(float(o["expected"]) - float(o["actual"])) for o in worst]
    finite = all(map(isfinite, absolute))
    origins = _origins(plan, operator)
    return {
        "name": operator.name,
        "hash": operator.hash,
        "class": _class(operator),
        "state": record.state,
        "reason": record.reason or replay.get("reason", ""),
        "cause": record.cause,
        "parameters": [
            {
                "name": each.name,
                "shape": [render(extent) for extent in each.shape],
                "dtype": each.dtype,
                "role": each.role,
            }
            for each in operator.parameters
        ],
        "sites": len(plan.sites_of(operator.name)),
        "entries": dict(_calls(plan, operator)),
        "origins": origins[:_ORIGINS_SHOWN],
        "more_origins": max(0, len(origins) - _ORIGINS_SHOWN),
        "tests": {"total": replay.get("tests", 0), "passed": replay.get("passed", 0)},
        "probes": replay.get("probes", 0),
        "suspects": list(replay.get("suspects", ())),
        "worst_ratio": replay.get("worst_ratio"),
        "limits": _limits(worst),
        "max_abs_error": max(absolute, default=None) if finite else None,
        "target_ms": replay.get("kernel_ms"),
        "times": times,
        "picture": picture,
        "replay": replay,
        "model_check": record.model_check,
        "attempts": list(attempts),
        "again": list(record.again),
        "kernel": record.kernel,
        "written": record.written,
        "placement": replay.get("placement", ""),
        "lacks": [dict(each) for each in record.lacks],
        "repro": None if record.repro is None else str(record.repro),
        "repro_script": _script(record),
        "diagnosis": _diagnosis(record),
        # Only a carved test that did not pass can be run again from its folder.
        "replayable": bool(worst) and replay.get("status") != "pass",
        **_sources(record),
        "reference_source": operator.script,
        "seconds": record.seconds,
    }


def _diagnosis(record: OperatorRecord) -> list[dict[str, Any]]:
    found = [] if record.diagnosis is None else record.diagnosis.statements()
    return [
        {"kind": each.kind, "text": each.text, "evidence": list(each.evidence)} for each in found
    ]


def attempts(journal: Journal) -> dict[str, list[dict[str, Any]]]:
    """Per operator every verdict and every failure that the journal knows, oldest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    listed: set[tuple[str, str]] = set()
    for stage in ("operator", "model"):
        before: dict[str, Result] = {}
        for verdict in journal.results(stage):
            earlier = before.get(verdict.subject)
            before[verdict.subject] = verdict
            listed.add((verdict.subject, verdict.key))
            found.setdefault(verdict.subject, []).append(
                {
                    "time": verdict.time,
                    "stage": stage,
                    "status": verdict.status,
                    "reason": verdict.data.get("reason", ""),
                    "cause": verdict.data.get("cause", ""),
                    "worst_ratio": verdict.data.get("worst_ratio"),
                    "kernel": verdict.parts.get("kernel", ""),
                    "changed": []
                    if earlier is None
                    else list(what_changed(earlier.parts, ResultKey(verdict.key, verdict.parts))),
                }
            )
    for moment, _, data in journal.events("failed"):
        # A failed verdict is listed once: its event has the same key.
        if (data["operator"], data.get("key")) in listed:
            continue
        found.setdefault(data["operator"], []).append(
            {
                "time": moment,
                "stage": "failure",
                "status": "fail",
                "reason": data["reason"],
                "cause": data.get("cause", ""),
                "worst_ratio": None,
                "kernel": "",
                "changed": [],
            }
        )
    return {
        name: sorted(rows, key=lambda row: float(row["time"]))[-_ATTEMPTS_SHOWN:]
        for name, rows in found.items()
    }


def _origins(plan: GraphPlan, operator: Operator) -> list[dict[str, Any]]:
    """Places in the model; of those that differ in numbers only (layers) the first, and how many.

    ``alike`` is how many others there are.
    """
    places: dict[tuple[str, str, str], dict[str, Any]] = {}
    for origin in plan.origins_of(operator.name):
        key = (_NUMBER.sub("*", origin.module_path), origin.source, origin.operation)
        if key in places:
            places[key]["alike"] += 1
        else:
            places[key] = asdict(origin) | {"alike": 0}
    return list(places.values())


def _class(operator: Operator) -> str:
    """The class of its first output that has limits."""
    try:
        classes = [traits.operator_class for traits in traits_of(operator)]
    except TapmlError:
        return "unclassified"
    judged = [each for each in classes if each != "discrete"]
    return next(iter(judged or classes), "unclassified")


def _calls(plan: GraphPlan, operator: Operator) -> Counter[str]:
    return Counter(
        entry.name
        for entry in plan.entries.values()
        for call in entry.calls
        if call.operator == operator.name
    )


def _script(record: OperatorRecord) -> str:
    """The name of the file in the repro folder that shows the failure again; empty without one."""
    folder = record.repro
    return _SCRIPT if folder is not None and (folder / _SCRIPT).is_file() else ""


def _sources(record: OperatorRecord) -> dict[str, Any]:
    """The texts of the operator's modules, whatever their language, and the names of the others."""
    library = record.library
    modules = () if library is None else library.modules
    texts = [(module, _text(module.code)) for module in modules]
    return {
        "source": "\n\n".join(text for _, text in texts if text is not None),
        "binaries": [
            f"{module.dialect}, {len(module.code):,} bytes"
            for module, text in texts
            if text is None
        ],
    }


def _text(code: bytes) -> str | None:
    """A source as text; None for a binary, which is no UTF-8 or has control characters."""
    try:
        text = code.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def _limits(outputs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The limits of the output that came nearest to its own; none where none has a ratio."""
    rated = [o for o in outputs if o["passing"] and isfinite(float(o["ratio"]))]
    nearest = max(rated, key=lambda o: float(o["ratio"]) / o["passing"], default=None)
    return {} if nearest is None else {"degraded": nearest["passing"], "fail": nearest["degraded"]}
