"""Reports to draw: of a small session with everything in it, of a large one, of an early tapml."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.runs.journal import Journal
from tapml.runs.result_key import ResultKey
from tapml.session.journal import open_journal
from tapml.session.operator_record import OperatorRecord
from tapml.session.report_data import build_report
from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.judge import judge
from tapml.verdicts.picture import picture
from tapml.verdicts.policy import Policy
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import CodeModule, Library
from tapml_targets.limits import Limits
from tapml_targets.self_test.facts import Fact, SelfTest
from tests.session.plans import decoder

SUSPECT: Final = "the importer is suspect, not the target (1 of 3 tests)"
FLUSHES: Final = Fact(
    "float32_denormal_results", "flushed", "", "kept", False, "measured", "they become zero",
    trait="flushes float32 denormals",
)  # fmt: skip
KERNEL: Final = "__kernel void norm(__global float* out) { out[0] = 1.0f; } // copies"
REASON: Final = "worst error at out[3]: 2 times the limit"


def small_report(
    folder: Path, hostile: str = "", layers: int = 2, library: Library | None = None
) -> dict[str, Any]:
    """One operator moved and one failed, and everything that can be known of either.

    `library` is the moved one's, in place of one of OpenCL.
    """
    plan = decoder(layers, hostile=hostile)
    source = f"{KERNEL}\n// {hostile}".encode()
    library = library or Library("opencl", (CodeModule("opencl-c", source),), {}, {})
    moved, failed = (OperatorRecord(each) for each in plan.operators.values())
    moved.state, moved.library, moved.again = "moved", library, ("the policy",)
    moved.written = f"/kernels/{hostile}"
    moved.replay = {"tests": 3, "passed": 3, "status": "pass", "reason": REASON, "kernel_ms": 0.25}
    moved.replay |= {"worst_ratio": 1.5, "worst_test": f"e/{hostile}@p0", "reused": True}
    moved.replay |= {"times": _times(), "picture": draw(hostile or "out"), "worst": _worst(hostile)}
    moved.model_check = {"status": "pass", "max_absolute": 1e-6, "allowed": {"value": 1e-4}}
    failed.state, failed.reason, failed.repro = "failed", f"wrong {hostile}", folder / "r"
    failed.replay = {"tests": 3, "passed": 2, "worst_ratio": None, "status": "fail"}
    failed.replay["suspects"] = [f"{SUSPECT} {hostile}".strip()]
    device = DeviceDescription(
        "opencl", 0, f"device {hostile}", f"vendor {hostile}", "cpu", f"1.0 {hostile}", Limits()
    )
    with open_journal(folder / "journal") as journal:
        _tell(journal, moved.operator.name, failed.operator.name, hostile)
        report = build_report(
            plan=plan,
            model={
                "name": f"model {hostile}", "dtype": "float32", "context_length": 64,
                "weights_hash": "0", "notes": [hostile],
            },
            reference="CPU",
            device=device,
            fingerprint="f",
            policy=Policy(),
            records=[moved, failed],
            final=None,
            journal=journal,
            folder=folder,
            self_test=SelfTest((FLUSHES, replace(FLUSHES, value=hostile)), (f"hung {hostile}",)),
        )  # fmt: skip
    if hostile:
        report["loosened"] = [hostile]
    return report


def draw(output: str) -> dict[str, Any]:
    """A picture with one wrong element, from the real judge."""
    want = ExpectedOutput(output, "float32", "value", np.ones((4, 6)), np.zeros((4, 6), np.float32))
    got = np.ones((4, 6), np.float32)
    got[2, 5] = 2.0
    expectation = Expectation((want,), 1, 3)

    class Replayed:
        test = f"e/{output}@p0"
        verdict = judge(want, expectation, None, (got,), Policy())
        actual = (got,)

    return picture(Replayed(), expectation)


def large_report(folder: Path, operators: int = 500, layers: int = 64) -> dict[str, Any]:
    """The small one's operators many times over, on a map of some two thousand call sites."""
    report = small_report(folder)
    moved = report["operators"][0]
    moved["source"] = f"{KERNEL}\n" * 150
    names = [f"operator_{index}" for index in range(operators)]
    report["operators"] = [copy.deepcopy(moved) | {"name": name} for name in names]
    sites = [(layer, place) for layer in range(layers) for place in range(31)]
    report["maps"] = [
        {
            "name": "prefill",
            "labels": names,
            "nodes": [
                [f"prefill/layers.{layer}/{place}", (layer * 8 + place) % operators,
                 64 + place % 11 * 112, layer * 290 + place // 11 * 90]
                for layer, place in sites
            ],
            "edges": [[index, index + 1] for index in range(len(sites) - 1)],
            "bands": [[f"layer {layer}", 0, layer * 290, 260] for layer in range(layers)],
            "strip": 64 + 11 * 112,
            "width": 64 + 11 * 112,
            "height": layers * 290,
        }
    ]  # fmt: skip
    return report


def early_report(folder: Path) -> dict[str, Any]:
    """What the first tapml wrote: no maps, no parameters, no times, no attempts."""
    report = small_report(folder)
    report["format"] = "tapml-report/1"
    for name in ("maps", "strategy", "moved_bytes", "verdicts", "session"):
        del report[name]
    known = {
        "name", "hash", "state", "reason", "sites", "origins", "tests", "worst_ratio", "replay",
        "max_abs_error", "target_ms", "model_check", "repro", "source", "seconds",
    }  # fmt: skip
    report["operators"] = [{k: o[k] for k in known} for o in report["operators"]]
    return report


def _tell(journal: Journal, moved: str, failed: str, hostile: str) -> None:
    """What the journal of such a session holds."""
    journal.append(
        "phase", name=f"carve {hostile}", seconds=1.5, group="overhead", platform="llvm",
        once=True, detail=hostile,
    )  # fmt: skip
    journal.append("strategy", name="bisect", order="graph", model_runs=2, promised=3)
    journal.append("moved_bytes", e={"moved": 2048, "minimum": 1024})
    journal.append("verdicts", kept=1, again=1, why={f"the policy {hostile}".strip(): 1})
    for kernel, status in (("k1", "fail"), ("k2", "pass")):
        key = ResultKey(f"{moved} {kernel}", {"kernel": kernel, "policy": "p"})
        data = {"reason": f"{status} {hostile}", "worst_ratio": 1.5}
        journal.record(key, "operator", moved, status, data)
    journal.append("failed", operator=failed, reason=f"wrong {hostile}", repro="r", diagnosis=None)


def _times() -> dict[str, Any]:
    entry = {"calls": 4, "target_ms": 1.0, "reference_ms": 0.5}
    return {
        "target_ms": 0.25, "reference_ms": 0.125, "ratio": 2.0, "clock": "device events",
        "entries": {"e": entry},
    }  # fmt: skip


def _worst(hostile: str) -> dict[str, Any]:
    output = {
        "name": hostile or "out", "kind": "value", "dtype": "float32", "elements": 24,
        "status": "pass", "ratio": 1.5, "rms_ratio": 0.5, "reference_ratio": 0.25, "passing": 4.0,
        "degraded": 16.0, "over": 0, "index": [0, 3], "expected": 1.0, "actual": 1.25,
    }  # fmt: skip
    return {"outputs": [output]}
