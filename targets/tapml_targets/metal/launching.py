"""Launches as calls of an encoder, prepared once and encoded any number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapml_targets.driver import BoundLaunch, BufferUse
from tapml_targets.errors import InputError, LimitExceededError
from tapml_targets.metal.commands import CommandStream
from tapml_targets.metal.description import ALIGNMENT, MOST_GROUPS
from tapml_targets.metal.interface import Interface
from tapml_targets.metal.memory import MetalBuffer


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel as the device runs it.

    Attributes
    ----------
    name
        Its name in the Library.
    pipeline
        The MTLComputePipelineState.
    interface
        What it takes.
    """

    name: str
    pipeline: Any
    interface: Interface


@dataclass(frozen=True)
class _Copy:
    """A window that starts at an odd place, and the aligned memory that stands in for it."""

    buffer: MetalBuffer
    offset: int
    nbytes: int
    stand_in: Any


@dataclass
class _Prepared:
    """One launch: what to bind, and the copies around it."""

    kernel: LoadedKernel
    bound: list[tuple[Any, int]]
    numbers: bytes
    grid: Any
    block: Any
    copies: list[_Copy] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchSequence:
    """Launches that follow each other, ready to be encoded."""

    prepared: tuple[_Prepared, ...]
    buffers: tuple[MetalBuffer, ...]


class Launcher:
    """Prepares and encodes launches for one device.

    Parameters
    ----------
    metal
        The module of the binding.
    stream
        The device's commands.
    reserve
        Makes an MTLBuffer of so many bytes.
    name
        The device's, for errors.
    """

    def __init__(
        self, metal: Any, stream: CommandStream, reserve: Callable[[int], Any], name: str
    ) -> None:
        self._metal = metal
        self._stream = stream
        self._reserve = reserve
        self._name = name

    def bind(self, launches: Sequence[BoundLaunch]) -> LaunchSequence:
        """Check and prepare launches."""
        prepared: list[_Prepared] = []
        buffers: dict[int, MetalBuffer] = {}
        for launch in launches:
            uses, numbers = launch.kernel.interface.split(launch.kernel.name, launch.arguments)
            buffers |= {id(use.buffer): use.buffer for use in uses}
            for use in uses:
                use.buffer.check(use.byte_offset, use.nbytes, f"kernel {launch.kernel.name!r}")
            if 0 not in launch.threads:
                prepared.append(self._prepared(launch, uses, numbers))
        return LaunchSequence(tuple(prepared), tuple(buffers.values()))

    def encode(self, sequence: LaunchSequence) -> None:
        """Encode a prepared sequence."""
        for buffer in sequence.buffers:
            buffer.check(0, 0, "launch")
        for launch in sequence.prepared:
            self._encode(launch)

    def _prepared(
        self, launch: BoundLaunch, uses: Sequence[BufferUse], numbers: bytes
    ) -> _Prepared:
        most = self._limit(launch)
        if max(launch.grid) > most:
            raise LimitExceededError(
                f"kernel {launch.kernel.name!r} needs a grid of {launch.grid}; {self._name} allows "
                f"{most} along each axis"
            )
        size = self._metal.MTLSize
        made = _Prepared(launch.kernel, [], numbers, size(*launch.grid), size(*launch.block))
        stand_ins: dict[tuple[int, int, int], Any] = {}
        for use in uses:
            if use.byte_offset % ALIGNMENT == 0 or not use.nbytes:
                # A kernel that is given nothing reads nothing: any place of the buffer will do.
                made.bound.append((use.buffer.memory, use.byte_offset if use.nbytes else 0))
                continue
            nbytes = use.nbytes + use.behind
            key = id(use.buffer), use.byte_offset, nbytes
            if key not in stand_ins:
                self._check_overlap(launch, use, uses)
                stand_ins[key] = self._reserve(nbytes)
                made.copies.append(_Copy(use.buffer, use.byte_offset, nbytes, stand_ins[key]))
            made.bound.append((stand_ins[key], 0))
        return made

    def _limit(self, launch: BoundLaunch) -> int:
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        most = int(launch.kernel.pipeline.maxTotalThreadsPerThreadgroup())
        if threads > most:
            raise LimitExceededError(
                f"kernel {launch.kernel.name!r} is launched with {threads} threads per block; "
                f"{self._name} runs it with at most {most}"
            )
        return MOST_GROUPS

    def _check_overlap(
        self, launch: BoundLaunch, use: BufferUse, uses: Sequence[BufferUse]
    ) -> None:
        end = use.byte_offset + use.nbytes
        for other in uses:
            same = (other.byte_offset, other.nbytes) == (use.byte_offset, use.nbytes)
            overlaps = (
                other.byte_offset < end and use.byte_offset < other.byte_offset + other.nbytes
            )
            if other.buffer is use.buffer and not same and overlaps:
                raise InputError(
                    f"kernel {launch.kernel.name!r}: two arguments overlap and one starts at byte "
                    f"{use.byte_offset}; on this device overlapping windows must start at "
                    f"multiples of {ALIGNMENT}"
                )

    def _encode(self, launch: _Prepared) -> None:
        what = f"kernel {launch.kernel.name!r}"
        self._copy(launch.copies, what, back=False)
        encoder = self._stream.compute(what)
        encoder.setComputePipelineState_(launch.kernel.pipeline)
        for place, (memory, offset) in enumerate(launch.bound):
            encoder.setBuffer_offset_atIndex_(memory, offset, place)
        if launch.numbers:
            encoder.setBytes_length_atIndex_(launch.numbers, len(launch.numbers), len(launch.bound))
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(launch.grid, launch.block)
        self._copy(launch.copies, what, back=True)

    def _copy(self, copies: Sequence[_Copy], what: str, *, back: bool) -> None:
        for each in copies:
            inside = each.buffer.memory, each.offset
            beside = each.stand_in, 0
            (source, at), (target, to) = (beside, inside) if back else (inside, beside)
            self._stream.blit(what).copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
                source, at, target, to, each.nbytes
            )
