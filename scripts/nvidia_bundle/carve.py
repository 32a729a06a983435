"""The demo carved with a device as the reference, rooted in what PyTorch computed before.

carve.py CARRIED PACKAGE DEVICE OUT     CARRIED holds plan, Libraries, roots and cases
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(carried: str, package: str, device: str, out: str) -> dict[str, Any]:
    """Root the device and carve on it; the last line of output is the result."""
    from tapml.carving.record import carve
    from tapml.devices.reach import open_device
    from tapml.execute.device_reference import DeviceReference, executor_on
    from tapml.package.load import open_package
    from tapml.plan import format as plan_format
    from tapml.rooting.recorded import RecordedRoots
    from tapml_targets.errors import MismatchError, TapmlError
    from tapml_targets.library_format import unpack

    folder = Path(carried)
    listed = json.loads((folder / "carve.json").read_text("utf-8"))
    plan = plan_format.unpack((folder / "plan.msgpack").read_bytes())
    runnable = open_package(Path(package))
    libraries = {
        name: unpack((folder / file).read_bytes()) for name, file in listed["libraries"].items()
    }
    try:
        with open_device(device) as session:
            reference = DeviceReference(session, plan.operators, libraries)
            report = RecordedRoots.read(folder / "roots.npz").root(
                plan, runnable.weights, reference
            )
            with carve(
                runnable.model,
                executor_on(plan, runnable.weights, reference),
                [tuple(case) for case in listed["cases"]],
                Path(out),
                max_new_tokens=listed["new_tokens"],
                overwrite=True,
            ) as suite:
                summary = suite.summary()
                name = suite.reference
    except MismatchError as error:
        return {"status": "fail", "line": f"{device} is not PyTorch: {error}"}
    except TapmlError as error:
        return {"status": "fail", "line": str(error)}
    worst = report.worst
    return {
        "status": "pass",
        "line": f"{summary.tests} tests recorded on {name}; {report.sites} call sites equal "
        f"PyTorch's" + (f", worst at {worst.ratio:.2g} of its bound" if worst else ""),
        "figures": {
            "passed": report.sites,
            "of": report.sites,
            "tests": summary.tests,
            "operators": len(plan.operators),
            "worst_ratio": worst.ratio if worst else 0.0,
        },
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
