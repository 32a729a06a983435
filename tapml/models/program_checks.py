"""What a recorded program may not have: random numbers, sizes of values, results as they came."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from tapml_targets.errors import InputError


def check_random(program: torch.export.ExportedProgram, name: str) -> None:
    """Nothing is drawn, as it would be behind a seed that the module sets itself."""
    for node in program.graph.nodes:
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        given = {
            each.name: node.args[place]
            if place < len(node.args)
            else node.kwargs.get(each.name, each.default_value)
            for place, each in enumerate(node.target._schema.arguments)
        }
        # A dropout draws while it trains, and attention with a share to drop.
        draws = all(given.get(each, True) for each in ("train", "training", "dropout_p"))
        if draws and node.users:
            raise InputError(
                f"{name} draws random numbers ({node.target}): a model has none; make them an "
                "input, or call module.eval() before it is exported"
            )


def check_extents(program: torch.export.ExportedProgram, name: str) -> None:
    """No size depends on values."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and free_unbacked_symbols(value):
            raise InputError(
                f"{name} has {node.target}, whose size depends on the values of its input: "
                "expected sizes that follow from those of the inputs; take a fixed number"
            )


def check_results(program: torch.export.ExportedProgram, outputs: Sequence[str], name: str) -> None:
    """Every output is computed, and once."""
    signature = program.graph_signature
    given = {spec.arg.name for spec in signature.input_specs if spec.kind is not InputKind.TOKEN}
    results = [
        getattr(spec.arg, "name", "")
        for spec in signature.output_specs
        if spec.kind is OutputKind.USER_OUTPUT
    ]
    for at, each in enumerate(results[: len(outputs)]):
        if not each or each in given:
            raise InputError(
                f"output {outputs[at]} of {name} is an input, a weight or a constant as it is: "
                "return what is computed"
            )
        if each in results[:at]:
            raise InputError(
                f"outputs {outputs[results.index(each)]} and {outputs[at]} of {name} are one "
                "tensor: return it once"
            )
