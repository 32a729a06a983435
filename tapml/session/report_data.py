"""The report as data: what ``report.json`` holds and the page draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.plan.graph_plan import GraphPlan
from tapml.session.model_times import model_times
from tapml.session.report_map import map_of
from tapml.session.report_operators import attempts, operator_data
from tapml.verdicts.device_effects import effects
from tapml.verdicts.limits import DEFAULT_LIMITS
from tapml.verdicts.policy import Policy
from tapml_targets.driver import DeviceDescription
from tapml_targets.installed import package_version
from tapml_targets.self_test.facts import SelfTest, to_plain

if TYPE_CHECKING:
    from tapml.runs.journal import Journal
    from tapml.session.final_run import FinalRun
    from tapml.session.operator_record import OperatorRecord

FORMAT: Final = "tapml-report/3"


def build_report(
    *,
    plan: GraphPlan,
    model: Mapping[str, Any],
    reference: str,
    reference_device: Mapping[str, str] | None = None,
    device: DeviceDescription,
    fingerprint: str,
    policy: Policy,
    records: Sequence[OperatorRecord],
    final: FinalRun | None,
    journal: Journal,
    folder: Path | None = None,
    self_test: SelfTest | None = None,
) -> dict[str, Any]:
    """Everything known about a session, as strict JSON data.

    `reference_device` is the device that is the reference, None where it is the host's processor.
    `folder` is the session's, `self_test` what is known of its device.
    """
    history = attempts(journal)
    operators = [
        operator_data(plan, record, history.get(record.operator.name, ())) for record in records
    ]
    for each in operators:
        each["device_effects"] = _effects(each, self_test)
    summary = _summary(operators)
    growth = _latest(journal, "growth")
    return {
        "format": FORMAT,
        "session": "" if folder is None else str(folder),
        "tapml": package_version("tapml") or "source",
        "model": dict(model) | {"parameters": _parameters(plan)},
        "reference": reference,
        "reference_device": reference_device,
        "target": _device(device, fingerprint) | {"self_test": _self_test(self_test)},
        "policy": _policy(policy, model["dtype"]),
        "loosened": list(policy.loosened),
        "outcome": outcome(summary, final, device),
        "summary": summary,
        "operators": operators,
        "rooting": [data for _, _, data in journal.events("rooted")][-1:],
        "final": None if final is None else final.to_json(),
        "phases": phases(journal),
        "times": model_times(operators),
        "strategy": _latest(journal, "strategy"),
        "moved_bytes": _latest(journal, "moved_bytes"),
        "verdicts": _latest(journal, "verdicts"),
        "quantization": _latest(journal, "quantization"),
        "growth": growth.get("text", ""),
        "maps": [
            map_of(plan, entry, growth.get("entries", {}).get(name, {})).to_json()
            for name, entry in plan.entries.items()
        ],
    }


def outcome(
    summary: Mapping[str, Any], final: FinalRun | None, device: DeviceDescription
) -> dict[str, str]:
    """The status of a session and one line that says it."""
    moved, total = summary["moved"], summary["operators"]
    where = f"{device.platform} ({device.name})"
    if summary["failed"]:
        names = ", ".join(summary["failed_operators"])
        return {
            "status": "fail",
            "text": f"{len(summary['failed_operators'])} of {total} operators failed on {where}: "
            f"{names}; {moved} moved",
        }
    if summary["validated"] and not summary["waiting"]:
        # A model that is larger than the device: what was not run has not passed.
        why = final.headline if final is not None else summary["not_run"]
        return {
            "status": "not run",
            "text": f"{moved + summary['validated']} of {total} operators pass their own tests on "
            f"{where}, and the model ran with {moved} of them; {why}",
        }
    if 0 < moved < total == moved + summary["kept"]:
        # The hybrid graph passed with every operator that was to move.
        return {
            "status": "pass",
            "text": f"{moved} of {total} operators are on {where}; {total - moved} "
            f"stay{'s' * (total - moved == 1)} on the source as asked, and the model passes like "
            "that",
        }
    if moved < total:
        return {
            "status": "incomplete",
            "text": f"{moved} of {total} operators are on {where}; {total - moved} stay on the "
            "source",
        }
    if final is None:
        return {"status": "incomplete", "text": "the whole model was not run on the target"}
    status = final.status
    start = f"all {total} operators are on {where}; "
    return {"status": status, "text": start + final.headline}


def phases(journal: Journal) -> list[dict[str, Any]]:
    """Rows of the time breakdown (the paper's table III), of the latest run."""
    rows: list[dict[str, Any]] = []
    for _, kind, data in journal.events():
        if kind == "run":
            rows = []
        elif kind == "phase":
            rows.append(data)
    return sorted(rows, key=lambda row: row.get("group") != "rooting")


def _latest(journal: Journal, kind: str) -> dict[str, Any]:
    """What a run last said about itself; nothing where it did not come so far."""
    return next((data for _, _, data in reversed(list(journal.events(kind)))), {})


def _summary(operators: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    states = [operator["state"] for operator in operators]
    rated = [o for o in operators if o["worst_ratio"] is not None]
    worst = max(rated, key=lambda o: o["worst_ratio"], default=None)
    return {
        "operators": len(operators),
        "moved": states.count("moved"),
        "failed": states.count("failed"),
        "kept": states.count("kept"),
        "validated": states.count("validated"),
        "waiting": states.count("waiting"),
        "not_run": next((o["reason"] for o in operators if o["state"] == "validated"), ""),
        "failed_operators": [o["name"] for o in operators if o["state"] == "failed"],
        "tests": sum(o["tests"]["total"] for o in operators),
        "tests_passed": sum(o["tests"]["passed"] for o in operators),
        "probes": sum(o["probes"] for o in operators),
        "worst_ratio": None if worst is None else worst["worst_ratio"],
        "worst_operator": None if worst is None else worst["name"],
    }


def _device(device: DeviceDescription, fingerprint: str) -> dict[str, Any]:
    limits = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(device.limits).items()
    }
    limits["features"] = sorted(device.limits.features)
    return {
        "platform": device.platform,
        "name": device.name,
        "vendor_platform": device.vendor_platform,
        "device_type": device.device_type,
        "driver_version": device.driver_version,
        "fingerprint": fingerprint,
        "limits": limits,
        "details": dict(device.details),
    }


def _self_test(self_test: SelfTest | None) -> dict[str, Any] | None:
    """What the device was found to do; None where nobody has looked."""
    return None if self_test is None else to_plain(self_test) | {"traits": list(self_test.traits)}


def _effects(operator: Mapping[str, Any], self_test: SelfTest | None) -> list[str]:
    """What the device's facts have to say about the worst of an operator's numbers."""
    if self_test is None or operator["replay"].get("status") in (None, "pass"):
        return []
    outputs = operator["replay"].get("worst", {}).get("outputs", [])
    lines = [line for each in outputs for line in effects(self_test, each, operator["class"])]
    return list(dict.fromkeys(lines))


def _policy(policy: Policy, dtype: str) -> dict[str, Any]:
    """The policy in a line: up to which ratio each class of operator passes."""
    classes = DEFAULT_LIMITS[dtype]
    passing = ", ".join(
        f"{name} {policy.choose('', dtype, 1, operator_class=name).limits.passing:g}"
        for name in classes
    )
    return {
        "hash": policy.hash,
        "text": f"passes up to error / (sensitivity + ulp), {dtype}: {passing}; sums of many terms "
        "have more",
    }


def _parameters(plan: GraphPlan) -> int:
    return sum(prod(weight.shape) for weight in plan.weights.values())
