"""The commands of one submission: dispatches and copies, in order, encoded at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeAlias

# The largest query set of any implementation.
_SET: Final = 4096


class Copy(NamedTuple):
    """Copy between two buffers; offsets and size are multiples of 4."""

    source: Any
    source_offset: int
    target: Any
    target_offset: int
    nbytes: int


class Dispatch(NamedTuple):
    """Run a pipeline over a grid of workgroups."""

    pipeline: Any
    bind_group: Any
    grid: tuple[int, int, int]


Command: TypeAlias = Copy | Dispatch


class Queries:
    """A pair of timestamps around each pass of one submission."""

    def __init__(self, wgpu: Any, device: Any, passes: int) -> None:
        self.count = 2 * passes
        self.sets = [
            (start, device.create_query_set(type="timestamp", count=min(_SET, self.count - start)))
            for start in range(0, self.count, _SET)
        ]
        usage = wgpu.BufferUsage
        self.memory = device.create_buffer(
            size=8 * self.count, usage=usage.QUERY_RESOLVE | usage.COPY_SRC
        )
        self.used = 0

    def next_pass(self) -> dict[str, Any]:
        """The timestamps that the next pass writes."""
        at, first = divmod(self.used, _SET)
        self.used += 2
        return {
            "query_set": self.sets[at][1],
            "beginning_of_pass_write_index": first,
            "end_of_pass_write_index": first + 1,
        }

    def resolve(self, encoder: Any) -> None:
        """Copy the timestamps to memory, after all passes."""
        for start, queries in self.sets:
            count = min(_SET, self.count - start)
            encoder.resolve_query_set(queries, 0, count, self.memory, 8 * start)


def count_passes(commands: Sequence[Command]) -> int:
    """Dispatches that follow each other share a pass; a copy ends it."""
    passes, inside = 0, False
    for command in commands:
        dispatch = isinstance(command, Dispatch)
        passes += dispatch and not inside
        inside = dispatch
    return passes


class PassCalls(NamedTuple):
    """The calls of a pass for each dispatch."""

    set_pipeline: Callable[[Any], None]
    set_bind_group: Callable[[Any], None]
    dispatch: Callable[[tuple[int, int, int]], None]


def pass_calls(current: Any) -> PassCalls:
    """The calls of a pass, below wgpu's Python objects if this wgpu has the expected ones.

    That halves their time, and a decode step makes hundreds. Their errors are reported when the
    encoder ends.
    """
    below = calls_below()
    if below is None:
        return PassCalls(
            current.set_pipeline,
            partial(current.set_bind_group, 0),
            lambda grid: current.dispatch_workgroups(*grid),
        )
    set_pipeline, set_bind_group, dispatch, null = below
    handle = current._internal
    return PassCalls(
        lambda pipeline: set_pipeline(handle, pipeline._internal),
        lambda group: set_bind_group(handle, 0, group._internal, 0, null),
        lambda grid: dispatch(handle, *grid),
    )


@cache
def calls_below() -> tuple[Any, Any, Any, Any] | None:
    """The three calls as C functions, and C's null; None if this wgpu names them differently."""
    try:
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        return (
            lib.wgpuComputePassEncoderSetPipeline,
            lib.wgpuComputePassEncoderSetBindGroup,
            lib.wgpuComputePassEncoderDispatchWorkgroups,
            ffi.NULL,
        )
    except (ImportError, AttributeError):
        return None


def encode(device: Any, commands: Sequence[Command], queries: Queries | None = None) -> Any:
    """A command buffer that does all of it, in order."""
    encoder = device.create_command_encoder()
    current: Any = None
    calls: Any = None
    pipeline: Any = None
    group: Any = None
    for command in commands:
        if isinstance(command, Dispatch):
            if current is None:
                writes = None if queries is None else queries.next_pass()
                current = encoder.begin_compute_pass(timestamp_writes=writes)
                pipeline = group = None
                calls = pass_calls(current)
            if command.pipeline is not pipeline:
                pipeline = command.pipeline
                calls.set_pipeline(pipeline)
            if command.bind_group is not group:
                group = command.bind_group
                calls.set_bind_group(group)
            calls.dispatch(command.grid)
        else:
            if current is not None:
                current.end()
                current = None
            encoder.copy_buffer_to_buffer(*command)
    if current is not None:
        current.end()
    if queries is not None:
        queries.resolve(encoder)
    return encoder.finish()
