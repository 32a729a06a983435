"""Libraries of shaders: a module for each kernel, which takes buffers first, then numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from msgspec import structs

from tapml_targets.codegen import gpu, lowering
from tapml_targets.codegen.bounded_axes import with_bounded_axes
from tapml_targets.codegen.host_program import read_host_function
from tapml_targets.codegen.kept_calls import OWN, keep_own
from tapml_targets.codegen.operator_library import operator_library, stated_limits
from tapml_targets.codegen.options import check_options
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.symbol_bounds import MOST_BYTES, LaunchRange, launch_ranges
from tapml_targets.codegen.value_proof import TooWideError
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


Exchange: TypeAlias = Callable[[int], tuple[str, Mapping[str, object]] | None]
"""For subgroups of one width, the kind of TVM's target, and what it says of them, for which TVM
passes values on by shuffles; None where it does not."""

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
        How reductions are lowered on devices that have one width of subgroups.
    """

    platform: str
    dialect: str
    schedule_kind: str
    attributes: Sequence[str]
    write: Write
    config: dict[str, Any] | None = None
    exchange: Exchange = lambda width: None


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
    width = gpu.subgroup_width(limits)
    # TVM reduces by shuffles in at most two rounds.
    suits = width > 1 and width * width >= gpu.most_threads(limits, options)
    attributes = language.attributes
    generation, exchange = gpu.tvm_target(language.platform, limits, options, attributes), None
    if suits and (chosen := language.exchange(width)) is not None:
        exchange = gpu.tvm_target(chosen[0], limits, options, attributes, **chosen[1])
    lower = partial(lowering.lower, target=generation, config=language.config, exchange=exchange)

    def build(given: OperatorSource, scheduled: Any) -> Library:
        try:
            return _library(given, lower(scheduled), language, width)
        except TooWideError:
            return _library(given, lower(with_bounded_axes(scheduled)), language, width)

    kind = options.get("schedule_kind", language.schedule_kind)
    scheduler = gpu.Scheduler(
        wanted,
        gpu.tvm_target(kind, limits, options, ["max_shared_memory_per_block"]),
        stated_limits(limits),
        build,
    )
    kept = partial(keep_own, own=OWN | {"erf"})
    return operator_library(source, scheduler, limits, kept)


def buffers_first(launch: Launch, number_type: NumberType) -> Launch:
    """The launch with its buffers first, then its numbers in the types that the kernel takes."""
    buffers = [a for a in launch.arguments if isinstance(a, BufferArgument)]
    numbers = [number_type(a) for a in launch.arguments if isinstance(a, ScalarArgument)]
    return structs.replace(launch, arguments=(*buffers, *numbers))


def _library(
    source: OperatorSource, lowered: lowering.Lowered, language: ShaderLanguage, width: int
) -> Library:
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
            subgroup_width=width if "subgroups" in shader.features else 0,
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
