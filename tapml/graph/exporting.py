"""torch.export, with the decompositions run here so that the nodes keep their traces."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from tapml.graph.origins import origins_of, strip_prefix
from tapml.graph.plan import Origin
from tapml_targets.errors import InputError, UnsupportedOperatorError

_PARAMETER_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True)
class EntryDescription:
    """What is exported for one entry; `tapml.models.EntryModule` has the same fields and more.

    Attributes
    ----------
    name
        Name of the entry.
    module
        The torch module.
    example_inputs
        Positional tensors.
    input_names, output_names
        In the order of arguments and results; outputs are numbered where the names are None.
    dynamic_shapes
        As ``torch.export.export`` takes it.
    state
        (name, input index, output index) of every tensor that survives a run.
    prefix
        Path of the model inside `module`.
    """

    name: str
    module: torch.nn.Module
    example_inputs: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...] | None = None
    dynamic_shapes: Any = None
    state: tuple[tuple[str, int, int], ...] = ()
    prefix: str = ""


@dataclass(frozen=True)
class ExportedEntry:
    """An entry as an FX graph in core ATen operations.

    Attributes
    ----------
    description
        What was exported.
    program
        The exported program, decomposed.
    origins
        By FX node name.
    parameters
        Tensors of the model by the placeholder that stands for them.
    parameter_names
        Their names in the model, by placeholder.
    symbols
        The name the caller gave to a shape symbol of torch, by torch's own name for it.
    """

    description: EntryDescription
    program: torch.export.ExportedProgram
    origins: dict[str, Origin]
    parameters: dict[str, torch.Tensor]
    parameter_names: dict[str, str]
    symbols: dict[str, str] = field(default_factory=dict)


def export_entry(description: EntryDescription) -> ExportedEntry:
    """Export a module.

    Raises
    ------
    InputError
        If torch.export refuses the module; the message ends with its first line.
    UnsupportedOperatorError
        If the module changes its buffers or inputs in place.
    """
    for index, example in enumerate(description.example_inputs):
        if not isinstance(example, torch.Tensor):
            raise InputError(
                f"input {index} of {description.name!r} is {type(example).__name__}: expected a "
                "torch tensor; close over other arguments in the module"
            )
    with torch.no_grad(), _quiet():
        try:
            program = torch.export.export(
                description.module,
                description.example_inputs,
                dynamic_shapes=description.dynamic_shapes,
                strict=False,
            ).run_decompositions()
        except Exception as error:
            first = next((line for line in str(error).splitlines() if line.strip()), "")
            raise InputError(
                f"torch.export does not take the module of {description.name!r}: "
                f"{type(error).__name__}: {first}. It has to run without data-dependent Python "
                "control flow on the example inputs"
            ) from error
    origins = origins_of(program.graph.nodes, description.prefix)
    _refuse_mutations(program, origins, description.name)
    state = {**program.state_dict, **program.constants}
    parameters, names = {}, {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in _PARAMETER_KINDS and spec.target is not None:
            parameters[spec.arg.name] = state[spec.target]
            names[spec.arg.name] = strip_prefix(spec.target, description.prefix)
    return ExportedEntry(
        description, program, origins, parameters, names, _symbols(program, description)
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export warns about its own internals; that is nothing the user can act on."""
    logger = logging.getLogger("torch")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _refuse_mutations(
    program: torch.export.ExportedProgram, origins: Mapping[str, Origin], entry: str
) -> None:
    lines = []
    for spec in program.graph_signature.output_specs:
        if spec.kind in _MUTATIONS:
            origin = origins.get(spec.arg.name)
            where = f" at {origin.source} in {origin.module_path or 'the model'}" if origin else ""
            lines.append(f"{spec.target} is changed in place{where}")
    if lines:
        raise UnsupportedOperatorError(
            f"{entry!r} cannot be imported: {'; '.join(lines)}. Take the tensor as an input and "
            "return its new value instead"
        )


def _symbols(
    program: torch.export.ExportedProgram, description: EntryDescription
) -> dict[str, str]:
    """A dynamic dimension is ``s45`` to torch; the caller's ``Dim`` has the name people know."""
    placeholders = [
        node
        for node, spec in zip(
            (node for node in program.graph.nodes if node.op == "placeholder"),
            program.graph_signature.input_specs,
            strict=True,
        )
        if spec.kind is InputKind.USER_INPUT
    ]
    found: dict[str, str] = {}
    shapes = _flat_shapes(description.dynamic_shapes)
    for node, dimensions in zip(placeholders, shapes, strict=False):
        for axis, dimension in dimensions.items():
            extent = node.meta["val"].shape[axis]
            name = getattr(dimension, "__name__", None)
            if name and isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                found.setdefault(str(extent.node.expr), name)
    if len(set(found.values())) != len(found):
        return {}
    return found


def _flat_shapes(shapes: Any) -> list[dict[int, Any]]:
    """One mapping from axis to dimension per tensor, in the order of the inputs."""
    if shapes is None:
        return []
    if isinstance(shapes, Mapping) and shapes and all(isinstance(key, str) for key in shapes):
        return [leaf for value in shapes.values() for leaf in _flat_shapes_of(value)]
    return [leaf for value in shapes for leaf in _flat_shapes_of(value)]


def _flat_shapes_of(value: Any) -> list[dict[int, Any]]:
    if value is None:
        return [{}]
    if isinstance(value, Mapping):
        return [dict(value)]
    items: Sequence[Any] = value
    if any(isinstance(item, Mapping) for item in items) or not items:
        return [leaf for item in items for leaf in _flat_shapes_of(item)]
    return [dict(enumerate(items))]
