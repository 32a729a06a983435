"""Diagnoses a failure in a separate server process, which a kernel may kill without harm.

Refined kernels and recompiled variants cannot affect a migration's session, buffers and weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tapml.compiler.compiler import Compiler
from tapml.diagnosis.diagnose import diagnose
from tapml.diagnosis.variants import second_driver
from tapml.failures.diagnosis import Diagnosis
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure import Failure
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import DeviceLostError, NoSuchDeviceError, SetupError
from tapml_targets.library import Library
from tapml_targets.target import Target

BUDGET_SECONDS: Final = 30.0


def diagnose_in_subprocess(
    failure: Failure,
    compiler: Compiler,
    *,
    open_session: Callable[[], Session] | None = None,
    budget_seconds: float = BUDGET_SECONDS,
) -> Failure:
    """Add the diagnosis to `failure`: inner step, wrong elements, origin of a NaN, and cause.

    Parameters
    ----------
    failure
        A test that did not pass.
    compiler
        Compiles inner steps and variants of the operator.
    open_session
        Opens the failure's device a second time; None opens one of this machine.
    budget_seconds
        Time limit; the diagnosis names what was left out.
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
                second=second_driver(session),
                budget_seconds=budget_seconds,
            )
    except (DeviceLostError, NoSuchDeviceError, SetupError) as error:
        what = "the device was lost" if isinstance(error, DeviceLostError) else "no device"
        found = Diagnosis(failure.operator.name, notes=(f"localization stopped: {what}: {error}",))
    return replace(failure, diagnosis=found)
