"""Asks a simulator that checks every access whether a failing kernel keeps OpenCL's rules.

Where two drivers disagree about a kernel, one of them is wrong or the kernel is: a race or a read
outside of a buffer comes out as it likes, and no driver is to blame for it.
"""

from __future__ import annotations

from typing import Final

from tapml.carving.repro_failure import Failure
from tapml.check.checker import open_checker
from tapml.check.operator_check import check_operator
from tapml.localize.variants import Trial, gist
from tapml_targets.errors import TapmlError

CHECKER: Final = "on a simulator that checks every access"
"""What the simulator is called in the evidence."""

_PLATFORM: Final = "opencl"
_TEXT_CHARACTERS: Final = 120


def check_kernel(failure: Failure) -> Trial:
    """Replay the failing test on Oclgrind.

    Returns
    -------
    Trial
        Wrong where it finds a fault of the kernel, right where it finds none, neither where it
        cannot be asked.
    """
    if failure.library.target != _PLATFORM:
        return Trial(CHECKER, None, f"not asked: there is none for {failure.library.target}")
    try:
        with open_checker() as checker:
            found = check_operator(
                failure.operator, [failure.result.case], failure.library, checker
            )
    except TapmlError as error:
        return Trial(CHECKER, None, f"not asked: {gist(error)}")
    if not found:
        return Trial(CHECKER, "pass", "it finds no fault", right=True)
    first = found[0]
    place = f" at line {first.line}: {first.text[:_TEXT_CHARACTERS]}" if first.line else ""
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return Trial(CHECKER, "fail", f"{first.kind}{place}{more}")
