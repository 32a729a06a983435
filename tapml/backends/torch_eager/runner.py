"""Loads a torch module, and runs its program operation by operation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tapml.backends.parts import Graph, PartsRunner, Prepared
from tapml.backends.runner import Array
from tapml.backends.torch_graph import TorchGraph, TorchPart


def _attention(variant: str) -> AbstractContextManager[Any]:
    # The block kernel does not take every shape.
    chosen = {"math": [SDPBackend.MATH], "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]}
    return sdpa_kernel(chosen[variant]) if variant in chosen else nullcontext()


def load(model: Path, variant: str) -> PartsRunner:
    """Load a module's folder; raises InputError if it is none."""

    def prepare(graph: Graph, part: TorchPart, inputs: Mapping[str, Array]) -> Prepared:
        del graph, inputs

        def run(given: Mapping[str, Array]) -> list[Array]:
            with _attention(variant):
                return part.run(part.module, given)

        return run

    return PartsRunner(TorchGraph(model), prepare, lambda: {"torch": torch.__version__})
