"""Loads a torch module, and runs its program operation by operation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from tapml.backends.parts import Graph, PartsRunner, Prepared
from tapml.backends.runner import Array
from tapml.backends.torch_graph import TorchGraph, TorchPart
from tapml.backends.torch_program import attention


def load(model: Path, variant: str) -> PartsRunner:
    """Load a module's folder; raises InputError if it is none."""

    def prepare(graph: Graph, part: TorchPart, inputs: Mapping[str, Array]) -> Prepared:
        del graph, inputs

        def run(given: Mapping[str, Array]) -> list[Array]:
            with attention(variant):
                return part.run(part.module, given)

        return run

    return PartsRunner(TorchGraph(model), prepare, lambda: {"torch": torch.__version__})
