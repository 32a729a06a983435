"""Diagnoses a failure in a server process of its own, so that a kernel that kills it costs nothing.

A migration's session, its buffers and its weights stay as they are whatever the refined kernels and
recompiled variants do to their driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tapml.carving.repro_failure import Failure
from tapml.compare.oracle import Oracle
from tapml.compiler.compiler import Compiler
from tapml.graph.plan import Operator
from tapml.localize.diagnose import diagnose
from tapml.localize.diagnosis import Diagnosis
from tapml.localize.second_driver import second_driver
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import DeviceLostError, NoSuchDeviceError, SetupError
from tapml_targets.library import Library
from tapml_targets.target import Target

BUDGET_SECONDS: Final = 30.0


def diagnosed(
    failure: Failure,
    compiler: Compiler,
    *,
    oracle: Oracle | None = None,
    open_session: Callable[[], Session] | None = None,
    budget_seconds: float = BUDGET_SECONDS,
) -> Failure:
    """`failure` with its diagnosis: inner step, places, origin of a NaN, and cause.

    Parameters
    ----------
    failure
        One test that did not pass.
    compiler
        Compiles inner steps and variants of the operator.
    oracle
        Float64 twins that are compiled already; made anew where it is None.
    open_session
        Opens the failure's device a second time, for this; one of this machine where it is None.
    budget_seconds
        After so long what is not tried yet is left out, and the diagnosis says so.
    """
    limits = failure.device.limits

    def compile_for_device(operator: Operator, options: Mapping[str, str]) -> Library:
        target = Target(failure.device.platform, tuple(sorted(options.items())), limits)
        return compiler.compile(operator, target)

    try:
        with open_session() if open_session else open_local(failure.device) as session:
            found = diagnose(
                failure,
                session,
                compile=compile_for_device,
                oracle=oracle,
                second=second_driver(session),
                budget_seconds=budget_seconds,
            )
    except (DeviceLostError, NoSuchDeviceError, SetupError) as error:
        what = "the device was lost" if isinstance(error, DeviceLostError) else "no device"
        found = Diagnosis(failure.operator.name, notes=(f"localization stopped: {what}: {error}",))
    return replace(failure, diagnosis=found)
