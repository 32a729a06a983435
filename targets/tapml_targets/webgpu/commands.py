"""What one submission is made of: dispatches and copies, in order, encoded at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias


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
        self.set = device.create_query_set(type="timestamp", count=self.count)
        usage = wgpu.BufferUsage
        self.memory = device.create_buffer(
            size=8 * self.count, usage=usage.QUERY_RESOLVE | usage.COPY_SRC
        )
        self.used = 0

    def next_pass(self) -> dict[str, Any]:
        """What the next pass is to write."""
        first, self.used = self.used, self.used + 2
        return {
            "query_set": self.set,
            "beginning_of_pass_write_index": first,
            "end_of_pass_write_index": first + 1,
        }


def count_passes(commands: Sequence[Command]) -> int:
    """Dispatches that follow each other share a pass; a copy ends it."""
    passes, inside = 0, False
    for command in commands:
        dispatch = isinstance(command, Dispatch)
        passes += dispatch and not inside
        inside = dispatch
    return passes


def encode(device: Any, commands: Sequence[Command], queries: Queries | None = None) -> Any:
    """A command buffer that does all of it, in order."""
    encoder = device.create_command_encoder()
    current: Any = None
    pipeline: Any = None
    group: Any = None
    for command in commands:
        if isinstance(command, Dispatch):
            if current is None:
                writes = None if queries is None else queries.next_pass()
                current = encoder.begin_compute_pass(timestamp_writes=writes)
                pipeline = group = None
            if command.pipeline is not pipeline:
                pipeline = command.pipeline
                current.set_pipeline(pipeline)
            if command.bind_group is not group:
                group = command.bind_group
                current.set_bind_group(0, group)
            current.dispatch_workgroups(*command.grid)
        else:
            if current is not None:
                current.end()
                current = None
            encoder.copy_buffer_to_buffer(*command)
    if current is not None:
        current.end()
    if queries is not None:
        encoder.resolve_query_set(queries.set, 0, queries.count, queries.memory, 0)
    return encoder.finish()
