"""Launches a plan's ``decode`` with bare pyopencl: the peer of scripts/bench_decode.py.

``python -m scripts.bare_launches LIBRARY PLATFORM:INDEX`` prints their number. For every line of
standard input it prints the seconds of the launches enqueued one by one, and the seconds from the
release of the same launches, all enqueued before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyopencl as cl

from tapml_targets.call_plan import BufferSlot, CallPlan, TensorShape, plan_call
from tapml_targets.driver import ScalarUse
from tapml_targets.dtype import dtype
from tapml_targets.expression import evaluate
from tapml_targets.library import Library
from tapml_targets.library_format import unpack
from tapml_targets.opencl.description import every_device
from tapml_targets.opencl.programs import build_program

ENTRY: Final = "decode"
Launch: TypeAlias = tuple[Any, tuple[int, ...], tuple[int, ...]]
"""A kernel with its arguments, its threads in all, and those of a group."""


def prepare(library: Library, context: Any, queue: Any) -> tuple[list[Launch], list[Any]]:
    """Kernels of the entry and their buffers, filled with random float32 or zeros."""
    # All extents of decode are numbers.
    shapes = [
        TensorShape(tuple(evaluate(extent, {}) for extent in each.shape), each.dtype)
        for each in library.entries[ENTRY].parameters
    ]
    plan = plan_call(library, ENTRY, shapes, {})
    slots = _buffers(context, queue, shapes, plan)
    programs = [
        build_program(context, queue.device, module.code, module.options)
        for module in library.modules
    ]
    launches: list[Launch] = []
    for launch in plan.launches:
        known = library.kernels[launch.kernel]
        kernel = cl.Kernel(programs[known.module], known.symbol)
        for index, argument in enumerate(launch.arguments):
            if isinstance(argument, BufferSlot):
                memory = slots[argument.slot]
                if argument.byte_offset:
                    memory = memory.get_sub_region(argument.byte_offset, argument.nbytes)
                kernel.set_arg(index, memory)
            elif isinstance(argument, ScalarUse):
                kernel.set_arg(index, np.dtype(argument.dtype).type(argument.value))
        threads = tuple(g * b for g, b in zip(launch.grid, launch.block, strict=True))
        launches.append((kernel, threads, launch.block))
    queue.finish()
    return launches, slots


def _buffers(context: Any, queue: Any, shapes: list[TensorShape], plan: CallPlan) -> list[Any]:
    random = np.random.default_rng(20240229)
    slots = []
    for shape in (*shapes, *(TensorShape((each.nbytes,), "uint8") for each in plan.workspaces)):
        buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, max(1, shape.nbytes))
        content = np.zeros(shape.nbytes, np.uint8)
        if dtype(shape.dtype).name == "float32":
            # Arithmetic on zeros may be faster.
            content = (random.standard_normal(shape.shape, np.float32) * 0.02).view(np.uint8)
        cl.enqueue_copy(queue, buffer, np.ascontiguousarray(content))
        slots.append(buffer)
    return slots


def one_by_one(queue: Any, launches: list[Launch]) -> float:
    """Seconds of the launches enqueued in a loop."""
    started = time.perf_counter()
    for kernel, threads, block in launches:
        cl.enqueue_nd_range_kernel(queue, kernel, threads, block)
    queue.finish()
    return time.perf_counter() - started


def released(context: Any, queue: Any, launches: list[Launch]) -> float:
    """Seconds from the release of the launches, which were all enqueued before."""
    gate = cl.UserEvent(context)
    for index, (kernel, threads, block) in enumerate(launches):
        # The queue is in order, so all launches wait for the gate.
        wait_for = [gate] if index == 0 else None
        cl.enqueue_nd_range_kernel(queue, kernel, threads, block, wait_for=wait_for)
    queue.flush()
    started = time.perf_counter()
    gate.set_status(cl.command_execution_status.COMPLETE)
    queue.finish()
    return time.perf_counter() - started


def main(library: str, spec: str) -> None:
    """Answer lines of standard input until it ends."""
    device = every_device()[int(spec.partition(":")[2])]
    context = cl.Context([device])
    queue = cl.CommandQueue(context, device)
    launches, _held = prepare(unpack(Path(library).read_bytes()), context, queue)
    print(len(launches), flush=True)
    for _ in sys.stdin:
        print(one_by_one(queue, launches), released(context, queue, launches), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
