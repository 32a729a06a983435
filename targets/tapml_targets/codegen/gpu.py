"""Scheduling for GPUs: all of dlight's rules, then its fallback rule alone.

A platform supplies the function that builds a Library from a scheduled module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import tvm
from tvm.s_tir import dlight

from tapml_targets.codegen import lowering
from tapml_targets.codegen.host_program import UnofferedLaunchError
from tapml_targets.codegen.one_thread import schedule_on_one_thread
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import CompileError
from tapml_targets.expression import product
from tapml_targets.library import Launch, Library
from tapml_targets.limits import Limits

# TVM's schedules are made for 256 threads and 16 KiB; a device with more gains little.
THREADS: Final = 256
SHARED_BYTES: Final = 16384
OPTIONS: Final[Mapping[str, tuple[str, ...] | None]] = {
    "cache": ("use", "bypass"),
    "max_num_threads": None,
    "schedule": ("dlight", "fallback", "one-thread"),
    "schedule_kind": None,
}
"""Options of every generator for GPUs; see :func:`tapml_targets.codegen.options.check_options`."""

Change: TypeAlias = Callable[[Any], Any]
Build: TypeAlias = Callable[[OperatorSource, Any], Library]


def as_it_is(module: Any) -> Any:
    """No change to a scheduled module."""
    return module


@dataclass(frozen=True)
class Scheduler:
    """Schedules functions and builds them.

    Attributes
    ----------
    wanted
        The option ``schedule``.
    target
        TVM's target, which the rules read.
    limits
        Limits of every kernel; 0 means no bound.
    build
        Makes a Library of a scheduled module.
    """

    wanted: str
    target: Any
    limits: Limits
    build: Build

    def library(self, source: OperatorSource, function: Any, finish: Change = as_it_is) -> Library:
        """Compile a function under the wanted schedule.

        If dlight's rules fail, exceed the limits, or need a launch that no driver offers, its
        fallback rule is used alone. What that leaves as it is, loops that are no blocks, runs on
        one thread.

        Parameters
        ----------
        finish
            Changes a module that dlight has scheduled.

        Raises
        ------
        CompileError
            If TVM refuses the operator, or its host half cannot be a launch plan.
        """
        if self.wanted == "dlight":
            library = self._with_all_rules(source, function, finish)
            if library is not None:
                return library
        try:
            if self.wanted == "one-thread":
                return self.build(source, schedule_on_one_thread(function))
            scheduled = lowering.schedule(function, self.target, _rules(general=False))
            try:
                return self.build(source, finish(scheduled))
            except lowering.NoDeviceCodeError:
                return self.build(source, finish(schedule_on_one_thread(function)))
        except RuntimeError as error:
            raise CompileError(lowering.refusal(error)) from error

    def _with_all_rules(
        self, source: OperatorSource, function: Any, finish: Change
    ) -> Library | None:
        try:
            scheduled = lowering.schedule(function, self.target, _rules(general=True))
            library = self.build(source, finish(scheduled))
        except (RuntimeError, UnofferedLaunchError, lowering.NoDeviceCodeError):
            # Some of dlight's rules fail on functions that they have accepted.
            return None
        # dlight's GeneralReduction has its thread count written in; the fallback rule asks.
        return None if _exceeds(library, self.limits) else library


def tvm_target(
    kind: str,
    limits: Limits,
    options: Mapping[str, str],
    attributes: Sequence[str] = (),
    **others: object,
) -> Any:
    """TVM's target of a kind, within the limits and the option ``max_num_threads``.

    `attributes` names further bounds that this kind has, `others` are more of its attributes.
    """
    threads = most_threads(limits, options)
    bounds = {
        "max_num_threads": threads,
        "max_threads_per_block": threads,
        "max_shared_memory_per_block": min(
            limits.max_shared_memory_bytes or SHARED_BYTES, SHARED_BYTES
        ),
    }
    chosen = {name: bounds[name] for name in ("max_num_threads", *attributes)}
    return tvm.target.Target({"kind": kind, **chosen, **others}).with_host(
        tvm.target.Target("llvm")
    )


def most_threads(limits: Limits, options: Mapping[str, str]) -> int:
    """Threads that a block of a schedule has at most."""
    threads = int(options.get("max_num_threads", THREADS))
    return min(threads, limits.max_threads_per_block or threads)


def subgroup_width(limits: Limits) -> int:
    """Threads that may exchange values; 1 where the device has no one width, or no exchange."""
    fewest, most = limits.subgroup_widths
    return fewest if "subgroups" in limits.features and fewest == most > 0 else 1


def block_threads(launch: Launch) -> int:
    """Threads of a block; 0 if they are not fixed."""
    threads = product(launch.block)
    return threads if isinstance(threads, int) else 0


def _rules(*, general: bool) -> Sequence[Any]:
    gpu = dlight.gpu
    first = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction())
    return (*first, gpu.GeneralReduction(), gpu.Fallback()) if general else (gpu.Fallback(),)


def _exceeds(library: Library, limits: Limits) -> bool:
    return any(
        kernel.threads_per_block > limits.max_threads_per_block > 0
        or kernel.shared_memory_bytes > limits.max_shared_memory_bytes > 0
        for kernel in library.kernels.values()
    )
