"""Libraries of kernels that one of TVM's own generators prints, in a language like C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from re import Pattern
from typing import Any, TypeAlias

import tvm
from msgspec import structs

from tapml_targets.codegen import gpu, lowering
from tapml_targets.codegen.constants import with_exact_constants
from tapml_targets.codegen.host_program import read_host_function
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.codegen.tvm_errors import as_runtime_errors
from tapml_targets.installed import compiler_versions
from tapml_targets.library import (
    CodeModule,
    Kernel,
    Launch,
    Library,
    ModuleKind,
    launches,
    with_launches,
)

Print: TypeAlias = Callable[[lowering.Lowered], str]
Arrange: TypeAlias = Callable[[Launch], Launch]


def tvm_text(generator: str, form: str) -> Print:
    """What TVM's generator for a target kind prints, with every digit of its constants.

    Parameters
    ----------
    generator
        The target kind: ``opencl``.
    form
        The form of its source: ``cl``.
    """

    def printed(lowered: lowering.Lowered) -> str:
        build = tvm.get_global_func(f"target.build.{generator}")
        with as_runtime_errors("TVM cannot write the kernels"):
            text = str(build(lowered.device, lowered.target).inspect_source(form))
        return with_exact_constants(text, lowered.device)

    return printed


def as_given(launch: Launch) -> Launch:
    """The launch with its arguments in the order of TVM's."""
    return launch


def _any_width(text: str) -> int:
    return 0


@dataclass(frozen=True, kw_only=True)
class TextBuild:
    """Makes a Library of a scheduled module; :class:`tapml_targets.codegen.gpu.Scheduler` calls it.

    Attributes
    ----------
    platform
        Folder name of the platform.
    dialect, kind
        Of its modules.
    generation
        TVM's target that the module is lowered for.
    text
        Prints the lowered module.
    features
        Device features by what shows in the text that a kernel needs them.
    offered
        Features that the device has, as the launch plan asks for them.
    arrange
        Puts a launch's arguments in the order that the platform's driver expects.
    subgroup_width
        Threads of a subgroup that kernels with this text are right for alone; 0 for any number.
    """

    platform: str
    dialect: str
    generation: Any
    text: Print
    features: Mapping[str, Pattern[str]] = field(default_factory=dict)
    offered: frozenset[str] = frozenset()
    arrange: Arrange = as_given
    subgroup_width: Callable[[str], int] = _any_width
    kind: ModuleKind = "source"

    def __call__(self, source: OperatorSource, scheduled: Any) -> Library:
        """One module with all kernels of the operator.

        Raises
        ------
        CompileError
            If the host half cannot be a launch plan.
        RuntimeError
            If TVM cannot lower or print it.
        """
        lowered = lowering.lower(scheduled, self.generation)
        program = read_host_function(lowered.host, source, self.offered)
        text = self.text(lowered)
        needed = tuple(name for name, shown in self.features.items() if shown.search(text))
        shared = lowering.shared_memory_bytes(lowered.device)
        kernels = {
            launch.kernel: Kernel(
                name=launch.kernel,
                symbol=launch.kernel,
                module=0,
                threads_per_block=gpu.block_threads(launch),
                shared_memory_bytes=shared.get(launch.kernel, 0),
                # A module is built at once, so each of its kernels needs the features of all.
                features=needed,
                subgroup_width=self.subgroup_width(text),
            )
            for launch in launches(program.statements)
        }
        statements = with_launches(program.statements, self.arrange)
        return Library(
            target=self.platform,
            modules=(CodeModule(self.dialect, text.encode(), kind=self.kind),),
            kernels=kernels,
            operators={source.name: structs.replace(program, statements=statements)},
            metadata={"compiler": compiler_versions()},
        )
