"""The pages of a repro folder that people read: README.txt and errors.txt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tapml.carving.error_map import describe_errors
from tapml.carving.lost import LOST
from tapml.carving.repro_failure import KERNELS, Failure
from tapml.compare.judge import choose_limits

SCRIPT_TEXT: Final = '''\
"""Replays what failed here; prints the verdict, and says where it is not the one of then.

    python repro.py [--device opencl:1]

It needs Python, the base install of tapml and a driver for the device: no model, no session, no
TVM, no PyTorch. Sources in kernels/ are run as they are now. Exit codes: 0 it passes now, 1 it
fails, 2 input or environment, 3 no such device, 4 the device was lost.
"""

import sys
from pathlib import Path

try:
    from tapml.carving.repro_script import main
except ImportError as error:
    sys.exit(print(f"repro.py needs the base install of tapml: {error}", file=sys.stderr) or 2)

if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent, sys.argv[1:]))
'''
"""The file ``repro.py``, the same in every folder; what it does is `tapml.carving.repro_script`."""


def errors_page(failure: Failure) -> str:
    """Where in the tensors the errors are, and what localization found."""
    verdict = failure.result.verdict
    pages = [f"{verdict.status}: {verdict.reason}\n"]
    if failure.result.actual:
        for output, raw in zip(failure.expectation.outputs, failure.result.actual, strict=True):
            passing = 0.0
            if output.is_float:
                terms = failure.expectation.terms
                chosen = choose_limits(failure.policy, failure.operator.name, output, terms)
                passing = chosen.limits.passing
            with np.errstate(all="ignore"):
                pages.append(describe_errors(output, raw, passing))
    else:
        pages.append("the outputs themselves are right, or there are none\n")
    pages += _diagnosis(failure)
    return "\n".join(pages)


def _diagnosis(failure: Failure) -> list[str]:
    """What localization found, as one page; none where it was not asked or found nothing."""
    lines = failure.diagnosis.lines() if failure.diagnosis is not None else []
    return ["Diagnosis:\n" + "".join(f"  {line}\n" for line in lines)] if lines else []


def readme(name: str, failure: Failure, kernels: Sequence[str | None]) -> str:
    """What failed where, and the one command that replays it from the folder called `name`."""
    device = failure.device
    origins = "\n".join(
        f"  {origin.operation} at {origin.source} ({origin.module_path})"
        for origin in failure.origins
    )
    sources = ", ".join(f"{KERNELS}/{each}" for each in kernels if each) or "binary only"
    verdict = failure.result.verdict
    found = "passes" if verdict.status == "pass" else "is wrong"
    if verdict.reason.startswith(LOST):
        found = "fails"
    return f"""\
Operator {failure.operator.name} {found} on {device.name}.

{verdict.status}: {verdict.reason}
{"".join(chr(10) + page for page in _diagnosis(failure))}
Replay it, here or on any machine with the same kind of device:

  python {name}/repro.py

It takes the base install of tapml and a driver for {device.platform}; neither the model nor a
compiler is needed. `tapml replay {name}` does the same and knows more options. Kernel sources:
{sources}; a replay runs them as they are in this folder, so edit one and replay to try a fix.

Device: {device.name}, {device.vendor_platform}, {device.driver_version}
Test: {failure.result.test}
{"From the model:" + chr(10) + origins + chr(10) if origins else ""}
errors.txt says where in the tensors the errors are. inputs/ is what the operator read, reference/
what the reference platform wrote, actual/ what the device wrote, expected/ the float64 result and
sensitivity/ how far that moves when the inputs move by one unit in their last place.
operator.tapml is the operator itself, for `tapml reduce` on a machine with the toolkit.
"""
