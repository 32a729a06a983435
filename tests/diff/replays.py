"""Outcomes of replays as JSON data, small ones made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def replay(**operators: dict[str, tuple[str, float]]) -> Json:
    """A replay's data: per operator its tests, each with a status and a ratio."""
    return {
        "format": "tapml-replay/2",
        "suite": "suite",
        "device": {
            "platform": "opencl",
            "name": "a device",
            "vendor_platform": "a vendor",
            "driver_version": "1.0",
        },
        "fingerprint": "f" * 64,
        "policy": {},
        "policy_hash": "0" * 64,
        "versions": {"apache-tvm": "0.27.0"},
        "status": worst([status for tests in operators.values() for status, _ in tests.values()]),
        "operators": [operator(name, tests) for name, tests in operators.items()],
    }


def operator(name: str, tests: dict[str, tuple[str, float]]) -> Json:
    """One operator of it."""
    return {
        "operator": name,
        "status": worst([status for status, _ in tests.values()]),
        "worst_ratio": plain(max((ratio for _, ratio in tests.values()), default=0.0)),
        "reason": f"why {name} is as it is",
        "tests": [
            {"test": test, "status": status, "ratio": plain(ratio), "kernel_seconds": 0.002}
            for test, (status, ratio) in tests.items()
        ],
    }


def worst(statuses: list[str]) -> str:
    """The gravest status."""
    order = ["pass", "not run", "degraded", "fail"]
    return max(statuses, key=order.index, default="not run")


def plain(ratio: float) -> float | str:
    """A ratio as strict JSON has it."""
    return ratio if abs(ratio) < float("inf") else str(ratio)


def write(path: Path, data: Json) -> Path:
    """A file that holds it."""
    path.write_text(json.dumps(data))
    return path
