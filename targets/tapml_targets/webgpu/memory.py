"""Device memory: buffers, and bytes moved between them at any offset.

WebGPU copies multiples of 4 bytes at multiples of 4, and never within one buffer. Everything else
is done by a kernel that assembles words from bytes, without a read-back.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from tapml_targets.memory_commands import DeviceMemory
from tapml_targets.webgpu.commands import Command, Copy, Dispatch

WORD: Final = 4
_THREADS: Final = 64
_MAX_GROUPS: Final = 32768
# Bytes of one dispatch; every device can bind as many.
_PIECE: Final = 64 << 20
_MOVER: Final = """
struct Arguments { source: u32, first: u32, end: u32, row: u32 }
@group(0) @binding(0) var<storage, read_write> words : array<u32>;
@group(0) @binding(1) var<storage, read> given : array<u32>;
@group(0) @binding(2) var<uniform> arguments : Arguments;
@compute @workgroup_size(64)
fn tapml_move(@builtin(workgroup_id) block : vec3<u32>,
              @builtin(local_invocation_id) lane : vec3<u32>) {
  let word = (block.y * arguments.row + block.x) * 64u + lane.x;
  let start = word * 4u;
  if (start >= arguments.end || start + 4u <= arguments.first) { return; }
  var kept = words[word];
  for (var i = 0u; i < 4u; i++) {
    let place = start + i;
    if (place >= arguments.first && place < arguments.end) {
      let source = arguments.source + place - arguments.first;
      let byte = (given[source >> 2u] >> (8u * (source & 3u))) & 255u;
      kept = (kept & ~(255u << (8u * i))) | (byte << (8u * i));
    }
  }
  words[word] = kept;
}
"""


class DeviceBuffer(DeviceMemory):
    """Device memory of `nbytes`, padded to a multiple of 16.

    wgpu ends the process if freed memory is used, so every use is checked first.
    """

    __slots__ = ("memory",)

    def __init__(self, memory: Any, nbytes: int) -> None:
        super().__init__(nbytes)
        self.memory = memory

    def release(self) -> None:
        """Release the memory; wgpu keeps it until the work that uses it has ended."""
        super().release()
        self.memory.destroy()


def rounded(nbytes: int, multiple: int = WORD) -> int:
    """`nbytes` or the next multiple."""
    return -(-nbytes // multiple) * multiple


class ByteMover:
    """Commands that copy bytes on one device, at any offset."""

    def __init__(self, wgpu: Any, device: Any, alignment: int) -> None:
        self._wgpu = wgpu
        self._device = device
        self._alignment = alignment
        self._built: tuple[Any, Any] | None = None

    def room(self, nbytes: int, label: str = "") -> Any:
        """Memory for kernels and copies; freed with its last reference."""
        usage = self._wgpu.BufferUsage
        return self._device.create_buffer(
            label=label,
            size=rounded(max(1, nbytes), 16),
            usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST,
        )

    def move(
        self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int
    ) -> list[Command]:
        """Commands for a copy from one buffer's memory to another's."""
        if not nbytes:
            return []
        if not (source_offset | target_offset | nbytes) % WORD:
            return [Copy(source, source_offset, target, target_offset, nbytes)]
        commands: list[Command] = []
        for start in range(0, nbytes, _PIECE):
            size = min(_PIECE, nbytes - start)
            commands.append(
                self._piece(source, source_offset + start, target, target_offset + start, size)
            )
        return commands

    def move_within(
        self, memory: Any, source_offset: int, target_offset: int, nbytes: int
    ) -> list[Command]:
        """Commands for a copy within one buffer, as if all were read first."""
        between = self.room(nbytes)
        return [
            *self.move(memory, source_offset, between, 0, nbytes),
            *self.move(between, 0, memory, target_offset, nbytes),
        ]

    def _piece(
        self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int
    ) -> Dispatch:
        pipeline, layout = self._pipeline()
        source_start, source_rest = self._aligned(source_offset)
        target_start, target_rest = self._aligned(target_offset)
        groups = -(-(target_rest + nbytes) // (WORD * _THREADS))
        row = min(groups, _MAX_GROUPS)
        usage = self._wgpu.BufferUsage
        uniform = self._device.create_buffer(size=16, usage=usage.UNIFORM | usage.COPY_DST)
        self._device.queue.write_buffer(
            uniform, 0, struct.pack("<4I", source_rest, target_rest, target_rest + nbytes, row)
        )
        windows = (
            (target, target_start, rounded(target_rest + nbytes)),
            (source, source_start, rounded(source_rest + nbytes)),
            (uniform, 0, 16),
        )
        group = self._device.create_bind_group(
            layout=layout,
            entries=[
                {"binding": index, "resource": {"buffer": memory, "offset": start, "size": size}}
                for index, (memory, start, size) in enumerate(windows)
            ],
        )
        return Dispatch(pipeline, group, (row, -(-groups // row), 1))

    def _aligned(self, offset: int) -> tuple[int, int]:
        start = offset - offset % self._alignment
        return start, offset - start

    def _pipeline(self) -> tuple[Any, Any]:
        if self._built is None:
            shader = self._device.create_shader_module(label="tapml_move", code=_MOVER)
            layout = self._device.create_bind_group_layout(
                entries=[
                    {
                        "binding": binding,
                        "visibility": self._wgpu.ShaderStage.COMPUTE,
                        "buffer": {"type": kind},
                    }
                    for binding, kind in enumerate(("storage", "read-only-storage", "uniform"))
                ]
            )
            whole = self._device.create_pipeline_layout(bind_group_layouts=[layout])
            pipeline = self._device.create_compute_pipeline(
                layout=whole, compute={"module": shader, "entry_point": "tapml_move"}
            )
            self._built = pipeline, layout
        return self._built
