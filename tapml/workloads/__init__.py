"""What a model is run on and compared by: one file for each kind of model, found by file.

A file is named after :attr:`tapml.models.stored.StoredModel.workload` and defines ``WORKLOAD``, a
subclass of :class:`~tapml.workloads.workload.Workload`. Carving, migration, validation and packages
ask it for cases, steps and comparison, and never which kind of model they have.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tapml.workloads.workload import Workload


def workload_of(model: Any) -> Workload[Any]:
    """The workload of a loaded or stored model; of a decoder for anything else that generates."""
    stored = getattr(model, "stored", model)
    kind = getattr(stored, "workload", "decoder")
    made: Workload[Any] = import_module(f"{__name__}.{kind}").WORKLOAD(model)
    return made
