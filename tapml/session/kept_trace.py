"""The stored run of the reference: cases and choices as JSON, outputs in a safetensors file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from tapml.models.stored import StoredModel
from tapml.models.tensor_file import open_tensors, write_tensors
from tapml.verdicts.modelwise import AllowedLogitError
from tapml.workloads import workload_of
from tapml.workloads.trace import CaseTrace, ReferenceTrace
from tapml_targets.errors import InputError


class KeptCase(msgspec.Struct):
    """A case, what the model chose, and the allowed error of a target."""

    case: dict[str, Any]
    choices: tuple[int, ...]
    allowed: AllowedLogitError


KeptCases: TypeAlias = Annotated[list[KeptCase], msgspec.Meta(min_length=1, max_length=1 << 16)]


def keep_trace(trace: ReferenceTrace, path: Path, model: StoredModel) -> list[KeptCase]:
    """Write the outputs to `path` and return the rest. Raises SetupError if that fails."""
    outputs = {str(index): each.outputs for index, each in enumerate(trace.cases)}
    write_tensors(path, outputs, {name: array.dtype.name for name, array in outputs.items()})
    workload = workload_of(model)
    return [
        KeptCase(workload.pack_case(each.case), each.choices, each.allowed) for each in trace.cases
    ]


def read_trace(kept: Sequence[KeptCase], path: Path, model: StoredModel) -> ReferenceTrace:
    """Read back what :func:`keep_trace` wrote and returned.

    Raises
    ------
    InputError
        If a case, a choice or the outputs do not fit the model.
    """
    tensors = open_tensors(path)
    workload = workload_of(model)
    traces = []
    for index, each in enumerate(kept):
        outputs = tensors.get(str(index))
        if outputs is None:
            raise InputError(f"{path}: case {index} has no outputs")
        case = workload.unpack_case(each.case)
        trace = CaseTrace(case, each.choices, np.asarray(outputs), each.allowed)
        workload.check_trace(trace)
        traces.append(trace)
    return ReferenceTrace(tuple(traces))
