"""What a repro folder is made from: one test of one operator, as it went on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tapml.carving.replay_results import ReplayResult
from tapml.compare.expectation import Expectation
from tapml.compare.policy import Policy
from tapml.graph.plan import Operator, Origin
from tapml.localize.diagnosis import Diagnosis
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import Library

KERNELS: Final = "kernels"
"""The folder of kernel sources in a repro folder."""


@dataclass(frozen=True)
class Failure:
    """What a repro folder is made from.

    Attributes
    ----------
    operator
        The operator, with its function and body.
    result
        The replay of one test, with the target's outputs.
    library
        What was run.
    device
        Where.
    expectation, policy
        What the outputs were held against, and how closely.
    origins
        Where in the model the operator comes from.
    diagnosis
        What localization found; None where it was not asked.
    """

    operator: Operator
    result: ReplayResult
    library: Library
    device: DeviceDescription
    expectation: Expectation
    policy: Policy
    origins: tuple[Origin, ...] = ()
    diagnosis: Diagnosis | None = None
