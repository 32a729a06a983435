"""A stand-in of ``cuda.core`` on the simulator.

``binding.json`` holds what cuda-core's stubs say; ``test_driver.py`` holds the classes here to it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tapml_targets.errors import CompileError, TapmlError
from tapml_targets.library import CodeModule, Kernel
from tests.targets.gpu_machine import Machine, Refused


class CUDAError(Exception):
    """As cuda-core raises it."""


def core(machine: Machine) -> Any:
    """The module with one GPU."""

    class LaunchConfig:
        def __init__(self, *, grid: Any, block: Any, shmem_size: int) -> None:
            self._all = tuple(grid), tuple(block), shmem_size

    class EventOptions:
        timing_enabled = False

        def __init__(self, *, timing_enabled: bool) -> None:
            self._timed = timing_enabled

    class Event:
        def __init__(self, timed: bool) -> None:
            self._timed, self._at = timed, 0.0

            def reached() -> None:
                self._at = machine.milliseconds

            machine.enqueue(reached)

        def __sub__(self, other: Event) -> float:
            if not (self._timed and other._timed):
                raise Refused("the time of an event that takes none")
            return self._at - other._at

    class Stream:
        def sync(self) -> None:
            try:
                machine.wait()
            except TapmlError as error:
                raise CUDAError(f"CUDA_ERROR_ILLEGAL_ADDRESS: {error}") from None

        def record(self, event: Any = None, options: Any = None) -> Event:
            return Event(options is not None and options._timed)

        def close(self) -> None:
            pass

    class Graph:
        def __init__(self, commands: Any) -> None:
            self._commands = commands

        def launch(self, stream: Stream) -> None:
            expect(stream)
            machine.replay(self._commands)

    class GraphBuilder:
        def begin_building(self, mode: str = "relaxed") -> GraphBuilder:
            machine.capture()
            return self

        def end_building(self) -> GraphBuilder:
            self._made = machine.end_capture()
            return self

        def complete(self, options: Any = None) -> Graph:
            return Graph(self._made)

    def expect(stream: Any) -> None:
        if machine.captured is not None and not isinstance(stream, GraphBuilder):
            raise Refused("the stream of a graph that is built")
        if not isinstance(stream, Stream | GraphBuilder):
            raise Refused("no stream")

    class Buffer:
        def __init__(self, address: int, nbytes: int) -> None:
            self._address, self._nbytes = address, nbytes

        @staticmethod
        def from_handle(
            ptr: int, size: int, mr: Any = None, owner: Any = None, *, stream: Any = None
        ) -> Buffer:
            return Buffer(ptr, size)

        @property
        def handle(self) -> int:
            return self._address

        def close(self, stream: Any = None) -> None:
            expect(stream)
            machine.enqueue(lambda: machine.free(self._address))

        def copy_to(self, dst: Any = None, *, stream: Any, options: Any = None) -> Any:
            expect(stream)
            if dst._nbytes != self._nbytes:
                raise Refused("a copy between buffers of two sizes")
            places = [machine.found(each._address, each._nbytes) for each in (dst, self)]
            if places == [None, None]:
                raise Refused("a copy on the host")
            on_device = places[0] is not None, places[1] is not None
            machine.copy(dst._address, self._address, self._nbytes, on_device)
            return dst

        def fill(self, value: bytes, *, stream: Any) -> None:
            expect(stream)
            if len(value) not in (1, 2, 4):
                raise Refused(f"a fill with {len(value)} bytes")
            machine.fill(self._address, self._nbytes, bytes(value))

    class Device:
        properties = SimpleNamespace(
            max_threads_per_block=1024, max_block_dim_x=1024, max_block_dim_y=1024,
            max_block_dim_z=64, max_grid_dim_x=2147483647, max_grid_dim_y=65535,
            max_grid_dim_z=65535, max_shared_memory_per_block=49152, warp_size=32,
            multiprocessor_count=132, clock_rate=1980000,
        )  # fmt: skip
        name = "NVIDIA H100"
        arch = "90"
        compute_capability = (9, 0)
        pci_bus_id = "0000:01:00.0"

        @classmethod
        def get_all_devices(cls) -> tuple[Device, ...]:
            return (Device(),)

        def to_system_device(self) -> Any:
            return SimpleNamespace(memory_info=SimpleNamespace(total=1 << 30))

        def set_current(self, ctx: Any = None) -> None:
            pass

        def create_stream(self, obj: Any = None, options: Any = None) -> Stream:
            return Stream()

        def create_graph_builder(self) -> GraphBuilder:
            return GraphBuilder()

        def allocate(self, size: int, *, stream: Any) -> Buffer:
            expect(stream)
            return Buffer(machine.allocate(size), size)

    class ObjectCode:
        def __init__(self, text: bytes) -> None:
            self._text = text

        @staticmethod
        def from_cubin(module: bytes, *, name: str = "", symbol_mapping: Any = None) -> ObjectCode:
            return ObjectCode(module)

        def get_kernel(self, name: str) -> Any:
            if f"void {name}(" not in self._text.decode():
                raise CUDAError("CUDA_ERROR_NOT_FOUND")
            module = CodeModule("cuda-c", self._text)
            found = machine.driver.load(module, [Kernel(name, name, 0)])[name]
            attributes = SimpleNamespace(max_threads_per_block=1024)
            return SimpleNamespace(
                loaded=found, num_arguments=len(found.sizes), attributes=attributes
            )

    def launch(stream: Any, config: Any, kernel: Any, *kernel_args: Any) -> None:
        expect(stream)
        if not all(isinstance(each, np.generic) for each in kernel_args):
            raise Refused("arguments whose size the binding does not know")
        machine.run(kernel.loaded, [each.tobytes() for each in kernel_args], *config._all)

    class ProgramOptions:
        name = arch = use_fast_math = fma = ptxas_options = use_bundled_headers = None

        def __init__(self, **given: Any) -> None:
            if unknown := given.keys() - vars(ProgramOptions).keys():
                raise TypeError(f"ProgramOptions has no {unknown}")

    class Program:
        def __init__(self, code: str, code_type: str, options: Any = None) -> None:
            self._code = code.encode()

        def compile(
            self, target_type: str, name_expressions: Any = (), logs: Any = None, *,
            cache: Any = None,
        ) -> Any:  # fmt: skip
            try:
                # A kernel is compiled when it is asked for; here every text is.
                machine.driver.load(CodeModule("cuda-c", self._code), [])
            except CompileError as error:
                raise CUDAError(str(error)) from None
            return SimpleNamespace(code=self._code)

    made = {name: each for name, each in locals().items() if name not in ("machine", "expect")}
    return SimpleNamespace(**made)
