"""A stand-in of pyobjc's Metal on the simulator, as strict as the framework where it can be.

Every message is looked up in ``binding.json``: what the binding's own metadata does not list does
not exist here, and an argument of another kind than it states is refused. A command runs only once
its command buffer is waited for, so work that is read before it is done is not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from tapml_targets.driver import BoundLaunch, BufferUse, Driver, KernelArgument, ScalarUse
from tapml_targets.errors import CompileError, TapmlError
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.metal.interface import FORMATS, read_interface

_KNOWN: Final = json.loads((Path(__file__).parent / "binding.json").read_text("utf-8"))
SELECTORS: Final[dict[str, list[str]]] = _KNOWN["selectors"] | _KNOWN["of_the_framework"]
_STORAGE_SHARED: Final = 0
_ALIGNMENT: Final = 16
_MOST_BYTES: Final = 4096
_PLACES: Final = 31


class MTLSize(NamedTuple):
    """Three extents."""

    width: int
    height: int
    depth: int


class Refused(AssertionError):
    """What Metal's validation layer, or the binding, would not take."""


def _fits(encoding: str, value: Any) -> bool:
    match encoding:
        case "Q":
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
        case "q":
            return isinstance(value, int) and not isinstance(value, bool)
        case "Z":
            return isinstance(value, bool)
        case "^v*":
            return isinstance(value, bytes | bytearray | memoryview)
        case "^@*":
            return value is None
        case "{MTLSize=QQQ}":
            return isinstance(value, MTLSize) and all(_fits("Q", each) for each in value)
        case "@":
            return value is None or isinstance(value, Object | str)
        case _:
            return False


class Object:
    """An Objective-C object, whose methods are its functions ``on_...``."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        selector = name.replace("_", ":")
        if name.startswith("_") or selector not in SELECTORS:
            raise AttributeError(f"{type(self).__name__} has no selector {selector!r}")
        act = type(self).__dict__.get(f"on_{name.rstrip('_')}")
        if act is None:
            raise AttributeError(f"{type(self).__name__} does not answer {selector!r}")

        def send(*arguments: Any) -> Any:
            kinds = SELECTORS[selector][1:]
            if len(arguments) != len(kinds):
                raise TypeError(f"{selector} takes {len(kinds)} arguments, got {len(arguments)}")
            for place, (kind, value) in enumerate(zip(kinds, arguments, strict=True)):
                if not _fits(kind, value):
                    raise ValueError(f"{selector}: argument {place} is {value!r}, not {kind}")
            given = [value for kind, value in zip(kinds, arguments, strict=True) if kind != "^@*"]
            return act(self, *given)

        return send


class Error(Object):
    """An NSError."""

    def __init__(self, text: str, code: int = 1) -> None:
        self._text, self._code = text, code

    def on_localizedDescription(self) -> str:
        return self._text

    def on_code(self) -> int:
        return self._code


class Buffer(Object):
    """An MTLBuffer in shared storage: its bytes are its own, in memory that never moves."""

    def __init__(self, nbytes: int) -> None:
        self.data = bytearray(b"\xa5") * nbytes

    def on_contents(self) -> Any:
        def as_buffer(count: int) -> memoryview:
            assert count <= len(self.data)
            return memoryview(self.data)[:count]

        return SimpleNamespace(as_buffer=as_buffer)


class CompileOptions(Object):
    """MTLCompileOptions, which begin with fast mathematics."""

    def __init__(self) -> None:
        self.mode, self.functions = 2, 0

    def on_setMathMode(self, mode: int) -> None:
        self.mode = mode

    def on_setMathFloatingPointFunctions(self, functions: int) -> None:
        self.functions = functions


class OlderCompileOptions(Object):
    """The same before macOS 15."""

    def __init__(self) -> None:
        self.mode = 2

    def on_setFastMathEnabled(self, fast: bool) -> None:
        self.mode = 2 if fast else 0


class Function(Object):
    """An MTLFunction."""

    def __init__(self, source: str, symbol: str) -> None:
        self.source, self.symbol = source, symbol


class Library(Object):
    """An MTLLibrary."""

    def __init__(self, source: str) -> None:
        self.source = source

    def on_newFunctionWithName(self, name: str) -> Function | None:
        return Function(self.source, name) if f"void {name}(" in self.source else None


class Pipeline(Object):
    """An MTLComputePipelineState."""

    def __init__(self, kernel: Any, function: Function) -> None:
        self.kernel = kernel
        self.interface = read_interface(function.source, function.symbol)

    def on_maxTotalThreadsPerThreadgroup(self) -> int:
        return 1024

    def on_threadExecutionWidth(self) -> int:
        return 32


@dataclass
class Encoder(Object):
    """A command encoder of either kind."""

    owner: CommandBuffer
    computes: bool
    pipeline: Pipeline | None = None
    places: dict[int, tuple[Buffer, int] | bytes] = field(default_factory=dict)

    def _expect(self, computes: bool) -> None:
        if self.owner.encoder is not self:
            raise Refused("a command behind endEncoding")
        if self.computes != computes:
            raise Refused("a command of another kind of encoder")

    def on_setComputePipelineState(self, pipeline: Pipeline) -> None:
        self._expect(True)
        self.pipeline = pipeline

    def on_setBuffer_offset_atIndex(self, buffer: Buffer, offset: int, index: int) -> None:
        self._expect(True)
        if offset % _ALIGNMENT or offset > len(buffer.data) or index >= _PLACES:
            raise Refused(f"a buffer of {len(buffer.data)} bytes at {offset}, place {index}")
        self.places[index] = buffer, offset

    def on_setBytes_length_atIndex(self, data: bytes, length: int, index: int) -> None:
        self._expect(True)
        if length != len(data) or length > _MOST_BYTES or index >= _PLACES:
            raise Refused(f"{length} bytes of {len(data)} at place {index}")
        self.places[index] = bytes(data)

    def on_dispatchThreadgroups_threadsPerThreadgroup(self, grid: MTLSize, block: MTLSize) -> None:
        self._expect(True)
        assert self.pipeline is not None
        if 0 in grid or 0 in block:
            raise Refused("a grid over nothing")
        places, pipeline = dict(self.places), self.pipeline
        self.owner.commands.append(lambda: self.owner.device.run(pipeline, places, grid, block))

    def on_copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
        self, source: Buffer, at: int, target: Buffer, to: int, nbytes: int
    ) -> None:
        self._expect(False)
        if at + nbytes > len(source.data) or to + nbytes > len(target.data):
            raise Refused("a copy outside a buffer")
        if source is target and abs(at - to) < nbytes:
            raise Refused("a copy whose windows overlap")

        def copy() -> None:
            target.data[to : to + nbytes] = source.data[at : at + nbytes]

        self.owner.commands.append(copy)

    def on_endEncoding(self) -> None:
        self._expect(self.computes)
        self.owner.encoder = None


class CommandBuffer(Object):
    """An MTLCommandBuffer: what it holds runs when it, or a later one, is waited for."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.commands: list[Callable[[], None]] = []
        self.encoder: Encoder | None = None
        self.state = 0
        self.failed: Error | None = None
        self.nanoseconds = 0

    def _encoding(self, computes: bool) -> Encoder:
        if self.encoder is not None or self.state:
            raise Refused("an encoder beside an open one, or behind commit")
        self.encoder = Encoder(self, computes)
        return self.encoder

    def on_computeCommandEncoder(self) -> Encoder:
        return self._encoding(True)

    def on_blitCommandEncoder(self) -> Encoder:
        return self._encoding(False)

    def on_commit(self) -> None:
        if self.encoder is not None or self.state:
            raise Refused("commit with an open encoder, or twice")
        self.state = 2
        self.device.committed.append(self)

    def on_waitUntilCompleted(self) -> None:
        if not self.state:
            raise Refused("waiting for what was not committed")
        while self.state == 2:
            self.device.committed.pop(0).complete()

    def complete(self) -> None:
        self.state = 4
        self.device.driver.begin_timing()
        try:
            for command in self.commands:
                command()
        except TapmlError as error:
            self.state, self.failed = 5, Error(str(error), self.device.fault_code)
        self.nanoseconds = self.device.driver.end_timing()()

    def on_status(self) -> int:
        return self.state

    def on_error(self) -> Error | None:
        return self.failed

    def on_GPUStartTime(self) -> float:
        return 1.0

    def on_GPUEndTime(self) -> float:
        return 1.0 + self.nanoseconds / 1e9


class Queue(Object):
    """An MTLCommandQueue."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def on_commandBuffer(self) -> CommandBuffer:
        return CommandBuffer(self.device)


class Device(Object):
    """An MTLDevice whose kernels run on the simulator."""

    def __init__(self, driver: Driver, family: int) -> None:
        self.driver, self.family = driver, family
        self.committed: list[CommandBuffer] = []
        self.fault_code = 3
        self.modes: list[int] = []

    def on_name(self) -> str:
        return "Apple M1"

    def on_registryID(self) -> int:
        return 0x100000274

    def on_maxThreadsPerThreadgroup(self) -> MTLSize:
        return MTLSize(1024, 1024, 1024)

    def on_maxThreadgroupMemoryLength(self) -> int:
        return 32768

    def on_maxBufferLength(self) -> int:
        return 1 << 30

    def on_recommendedMaxWorkingSetSize(self) -> int:
        return 5 << 30

    def on_supportsFamily(self, family: int) -> bool:
        return 1000 < family <= 1000 + self.family

    def on_hasUnifiedMemory(self) -> bool:
        return True

    def on_newCommandQueue(self) -> Queue:
        return Queue(self)

    def on_newBufferWithLength_options(self, nbytes: int, options: int) -> Buffer:
        assert nbytes > 0 and options == _STORAGE_SHARED
        return Buffer(nbytes)

    def on_newLibraryWithSource_options_error(
        self, source: str, options: CompileOptions | OlderCompileOptions
    ) -> tuple[Library | None, Error | None]:
        self.modes.append(options.mode)
        try:
            self.driver.load(CodeModule("msl", source.encode()), [])
        except CompileError as error:
            return None, Error(str(error))
        return Library(source), None

    def on_newComputePipelineStateWithFunction_error(
        self, function: Function
    ) -> tuple[Pipeline | None, Error | None]:
        kernel = Kernel(function.symbol, function.symbol, 0)
        loaded = self.driver.load(CodeModule("msl", function.source.encode()), [kernel])
        return Pipeline(loaded[function.symbol], function), None

    def run(
        self,
        pipeline: Pipeline,
        places: dict[int, tuple[Buffer, int] | bytes],
        grid: MTLSize,
        block: MTLSize,
    ) -> None:
        """Run a kernel on copies of its buffers, and copy them back."""
        copies: dict[int, tuple[Any, Buffer]] = {}
        arguments: list[KernelArgument] = []
        for place in range(pipeline.interface.buffers):
            bound = places[place]
            assert isinstance(bound, tuple)
            buffer, offset = bound
            if id(buffer) not in copies:
                memory = self.driver.allocate(len(buffer.data))
                self.driver.write(memory, 0, memoryview(buffer.data))
                copies[id(buffer)] = memory, buffer
            memory, _ = copies[id(buffer)]
            arguments.append(BufferUse(memory, offset, len(buffer.data) - offset))
        if pipeline.interface.scalars:
            numbers = places[pipeline.interface.buffers]
            assert isinstance(numbers, bytes)
            arguments += _unpacked(numbers, pipeline.interface.scalars)
        launch = BoundLaunch(
            pipeline.kernel,
            tuple(arguments),
            (grid.width, grid.height, grid.depth),
            (block.width, block.height, block.depth),
        )
        try:
            self.driver.launch_all(self.driver.bind([launch]))
        finally:
            for memory, buffer in copies.values():
                self.driver.read_into(memory, 0, memoryview(buffer.data))
                self.driver.free(memory)


def _unpacked(data: bytes, dtypes: tuple[str, ...]) -> list[KernelArgument]:
    layout = np.dtype(
        {"names": list(map(str, range(len(dtypes)))), "formats": [FORMATS[d] for d in dtypes]},
        align=True,
    )
    assert len(data) == layout.itemsize
    row = np.frombuffer(data, layout)[0]
    return [ScalarUse(each.item(), dtype) for each, dtype in zip(row, dtypes, strict=True)]


def metal(driver: Driver, *, family: int = 7, older: bool = False) -> Any:
    """The module ``Metal`` with one device, on an open simulated one."""
    options = OlderCompileOptions if older else CompileOptions
    device = Device(driver, family)
    made = SimpleNamespace(init=options)
    return SimpleNamespace(
        **_KNOWN["constants"],
        MTLSize=MTLSize,
        MTLCopyAllDevices=lambda: [device],
        MTLCompileOptions=SimpleNamespace(alloc=lambda: made),
    )
