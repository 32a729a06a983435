"""Libraries of shaders: a module for each kernel, which takes buffers first, then numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec import structs

from tapml_targets.codegen import gpu, lowering
from tapml_targets.codegen.host_program import read_host_function
from tapml_targets.codegen.operator_library import operator_library, stated_limits
from tapml_targets.codegen.options import check_options
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.symbol_bounds import MOST_BYTES, LaunchRange, launch_ranges
from tapml_targets.installed import compiler_versions
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    ScalarArgument,
    launches,
    with_launches,
)
from tapml_targets.target import Target

NumberType: TypeAlias = Callable[[ScalarArgument], ScalarArgument]
"""Gives a number the type in which a kernel takes it."""


@dataclass(frozen=True)
class Shader:
    """One kernel in a shading language."""

    symbol: str
    text: str
    features: tuple[str, ...]
    number_type: NumberType


Write: TypeAlias = Callable[[Launch, Any, LaunchRange, lowering.Lowered], Shader]
"""Writes a device function as a shader, from one of its launches and their ranges."""


@dataclass(frozen=True)
class ShaderLanguage:
    """How a platform makes shaders.

    Attributes
    ----------
    platform, dialect
        As Libraries and their modules name them.
    schedule_kind
        TVM's target kind to schedule for, unless the option says another.
    attributes
        Bounds that TVM's target of the platform has besides ``max_num_threads``.
    write
        Writes one kernel.
    config
        Options of TVM's passes.
    exchange
        Width of the subgroups whose threads pass values on, by shuffles, on devices of that one
        width; 1 for none.
    """

    platform: str
    dialect: str
    schedule_kind: str
    attributes: Sequence[str]
    write: Write
    config: dict[str, Any] | None = None
    exchange: int = 1


def generate_shaders(source: OperatorSource, target: Target, language: ShaderLanguage) -> Library:
    """Compile one operator.

    Parameters
    ----------
    source
        The operator, unscheduled, in its form for processors.
    target
        Limits that the schedule keeps to, features among them, and options:

        - ``schedule``: ``dlight`` (all of dlight's rules, the default), ``fallback`` (its fallback
          rule alone), ``one-thread`` (none: the loops as they were written);
        - ``cache``: ``bypass`` changes only the cache's key;
        - ``schedule_kind``: a TVM target kind to schedule for;
        - ``max_num_threads``.
    language
        What the platform adds.

    Returns
    -------
    Library
        One module per kernel, and one operator.

    Raises
    ------
    CompileError
        If TVM refuses the operator, its host half cannot be a launch plan, an option is unknown, or
        the language cannot write a kernel.
    """
    options = check_options(target, gpu.OPTIONS)
    wanted, limits = options.get("schedule", "dlight"), target.limits
    # With it TVM takes subgroups for 32 wide; without it no thread passes a value on.
    exchanges = gpu.subgroup_width(limits) == language.exchange > 1
    exchange = {"supports_subgroups": True} if exchanges else {}
    generation = gpu.tvm_target(language.platform, limits, options, language.attributes, **exchange)
    kind = options.get("schedule_kind", language.schedule_kind)
    scheduler = gpu.Scheduler(
        wanted,
        gpu.tvm_target(kind, limits, options, ["max_shared_memory_per_block"]),
        stated_limits(limits),
        lambda given, scheduled: _library(given, scheduled, generation, language),
    )
    return operator_library(source, scheduler, limits)


def buffers_first(launch: Launch, number_type: NumberType) -> Launch:
    """The launch with its buffers first, then its numbers in the types that the kernel takes."""
    buffers = [a for a in launch.arguments if isinstance(a, BufferArgument)]
    numbers = [number_type(a) for a in launch.arguments if isinstance(a, ScalarArgument)]
    return structs.replace(launch, arguments=(*buffers, *numbers))


def _library(
    source: OperatorSource, scheduled: Any, generation: Any, language: ShaderLanguage
) -> Library:
    lowered = lowering.lower(scheduled, generation, language.config)
    program = read_host_function(lowered.host, source)
    # For any device, not the target's: a Library may run where more is bound than there.
    ranges = launch_ranges(program, MOST_BYTES)
    shared = lowering.shared_memory_bytes(lowered.device)
    functions = {v.name_hint: f for v, f in lowered.device.functions.items()}
    modules: list[CodeModule] = []
    kernels: dict[str, Kernel] = {}
    number_types: dict[str, NumberType] = {}
    for launch in launches(program.statements):
        name = launch.kernel
        if name in kernels:
            continue
        shader = language.write(launch, functions[name], ranges[name], lowered)
        number_types[name] = shader.number_type
        kernels[name] = Kernel(
            name=name,
            symbol=shader.symbol,
            module=len(modules),
            threads_per_block=gpu.block_threads(launch),
            shared_memory_bytes=shared.get(name, 0),
            features=shader.features,
            subgroup_width=language.exchange if "subgroups" in shader.features else 0,
        )
        modules.append(CodeModule(language.dialect, shader.text.encode()))
    statements = with_launches(
        program.statements, lambda launch: buffers_first(launch, number_types[launch.kernel])
    )
    return Library(
        target=language.platform,
        modules=tuple(modules),
        kernels=kernels,
        operators={source.name: structs.replace(program, statements=statements)},
        metadata={"compiler": compiler_versions()},
    )
