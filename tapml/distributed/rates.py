"""The rate of change of layers, as the paper clusters inconsistencies by it (D3, III-E; CRADLE).

Of the trained model's hidden states on the same samples, d is the mean absolute distance of a
layer's output from one device's; the layer's rate is (d - d_in) / (d_in + 1e-7), where d_in is the
largest of its inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from tapml.distributed.judging import mean_distances
from tapml.distributed.run_records import Run, Tensors

PHASE: Final = "hidden"
_EPSILON: Final = 1e-7
_INDEX: Final = re.compile(r"\[\d+\]$")


def rates_of_change(reference: Run, run: Run, tensors: Tensors) -> dict[str, float]:
    """Rates by name, of the innermost modules that both runs have called and that are finite."""
    distances = mean_distances(reference, run, tensors, PHASE)
    inputs = {key[2]: record.inputs for key, record in reference.ranks[0].items()}
    found = {}
    for name, distance in distances.items():
        outer = any(other.startswith(f"{name}.") for other in distances) or name == "(model)"
        if outer or not np.isfinite(distance):
            continue
        before = max((distances.get(each, 0.0) for each in inputs.get(name, ())), default=0.0)
        found[name] = (distance - before) / (before + _EPSILON)
    return found


def class_of(tensor: str, modules: Mapping[str, str]) -> str:
    """The class of the module that a parameter, buffer or output belongs to; empty if unknown."""
    path = _INDEX.sub("", tensor.partition(" ")[0])
    if path == "(model)":
        return modules.get("", "")
    while path and path not in modules:
        path = path.rpartition(".")[0]
    return modules.get(path, "") if path else ""
