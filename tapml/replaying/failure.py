"""The content of a repro folder: one failing test of one operator on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tapml.failures.diagnosis import Diagnosis
from tapml.plan.graph_plan import Operator, Origin
from tapml.replaying.results import ReplayResult
from tapml.verdicts.expectation import Expectation
from tapml.verdicts.policy import Policy
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import Library

KERNELS: Final = "kernels"
"""The folder of kernel sources in a repro folder."""


@dataclass(frozen=True)
class Failure:
    """The content of a repro folder.

    Attributes
    ----------
    operator
        The operator, with its function and body.
    result
        The replay of one test, with the target's outputs.
    library
        The Library that ran.
    device
        The device it ran on.
    expectation, policy
        Expected outputs and tolerances.
    origins
        The operator's origins in the model.
    diagnosis
        The result of localization; None if not requested.
    """

    operator: Operator
    result: ReplayResult
    library: Library
    device: DeviceDescription
    expectation: Expectation
    policy: Policy
    origins: tuple[Origin, ...] = ()
    diagnosis: Diagnosis | None = None
