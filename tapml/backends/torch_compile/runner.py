"""Loads a torch module, and compiles its program."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from tapml.backends.parts import Graph, PartsRunner, Prepared
from tapml.backends.runner import Array
from tapml.backends.torch_graph import TorchGraph, TorchPart
from tapml.backends.torch_program import attention
from tapml_targets.errors import UnsupportedOperatorError


def load(model: Path, variant: str) -> PartsRunner:
    """Load a module's folder.

    Raises
    ------
    InputError
        If it is none.
    UnsupportedOperatorError
        If there is no C++ compiler, which inductor needs.
    """
    kernel = variant.rpartition("-")[2]
    compiler = variant.removesuffix("-math").removesuffix("-flash").replace("-", "_")
    if compiler == "inductor" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        raise UnsupportedOperatorError("torch.compile needs a C++ compiler: install g++")

    def prepare(graph: Graph, part: TorchPart, inputs: Mapping[str, Array]) -> Prepared:
        del graph, inputs
        torch.compiler.reset()
        compiled = torch.compile(part.module, backend=compiler, dynamic=False)

        def run(given: Mapping[str, Array]) -> list[Array]:
            with attention(kernel):
                return part.run(compiled, given)

        return run

    return PartsRunner(TorchGraph(model), prepare, lambda: {"torch": torch.__version__})
