"""Descriptions of the changed dependencies that invalidate a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.runs import result_key
from tapml.runs.result_key import Part, ResultKey

_PARTS: Final = {
    "kernel": Part("the kernel"),
    "operators": Part("which operators are on the target"),
    "kernels": Part("the kernels on the target"),
    "body": Part("the operator's function"),
    "kinds": Part("what its outputs mean", shown=True),
    "tests": Part("the carved tests"),
    "trace": Part("the reference's run"),
    "reference": Part("the reference's device"),
    "policy": Part("the policy"),
    "driver": Part("the driver", shown=True),
    "device": Part("the device", shown=True),
    "limits": Part("the device's limits"),
    "details": Part("the device's details"),
    "compiler": Part("the compiler", shown=True),
    "torch": Part("PyTorch", shown=True),
    "forms": Part("the torch operators it came from"),
    "oracle": Part("the oracle's version", shown=True),
    "probes": Part("the probes' version", shown=True),
}
"""Parts of a verdict's key, most informative first."""


def what_changed(before: Mapping[str, str], now: ResultKey) -> tuple[str, ...]:
    """:func:`tapml.runs.result_key.what_changed` with the parts of a verdict's key."""
    return result_key.what_changed(before, now, _PARTS)
