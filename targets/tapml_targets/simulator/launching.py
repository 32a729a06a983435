"""Calls a compiled kernel: its arguments, its blocks a few at a time, what ended it."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tapml_targets.driver import BoundLaunch, BufferUse, KernelArgument, ScalarUse
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.simulator.memory import GuardedBuffer, Pages

MOST_THREADS: Final = 1024
MOST_DYNAMIC_BYTES: Final = 256 << 10
_STACK_BYTES: Final = 256 << 10
# Between two slices a signal, such as Ctrl-C, is noticed.
_SLICE_SECONDS: Final = 0.05
ORDERS: Final = {"ascending": 0, "descending": 1, "random": 2}

# The scheduler's state is one per process.
_running = threading.Lock()


class _Failure(ctypes.Structure):
    _fields_ = (
        ("fault", ctypes.c_uint32),
        ("line", ctypes.c_int32),
        ("other_line", ctypes.c_int32),
        ("thread", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("other_thread", ctypes.c_uint32 * 3),
        ("address", ctypes.c_uint64),
        ("program_counter", ctypes.c_uint64),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("wave_width", ctypes.c_uint32),
        ("order", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("next_block", ctypes.c_uint64),
        ("most_blocks", ctypes.c_uint64),
        ("stacks", ctypes.c_void_p),
        ("stack_bytes", ctypes.c_uint64),
        ("dynamic_shared_bytes", ctypes.c_uint64),
        ("failure", _Failure),
    )


@dataclass(frozen=True)
class Schedule:
    """In which order threads run: ``ascending``, ``descending``, or ``random`` by a seed."""

    order: str = "ascending"
    seed: int = 0

    @classmethod
    def read(cls, text: str) -> Schedule:
        """The schedule that a text such as ``random:7`` names.

        Raises
        ------
        InputError
            If it names none.
        """
        order, _, seed = text.partition(":")
        if order not in ORDERS or (seed and not seed.isdecimal()) or (seed and order != "random"):
            raise InputError(
                f"expected a schedule of simulated threads, {', '.join(ORDERS)} or random:SEED, "
                f"got {text!r}"
            )
        return cls(order, int(seed or 0) % 2**64)


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel of a compiled module.

    Attributes
    ----------
    name, symbol
        Its name in the Library, and in the text.
    library
        The module.
    entry
        Address of the function that calls it.
    sizes
        Per parameter the bytes of a number, 0 for memory.
    packed
        Whether its numbers are one structure.
    """

    name: str
    symbol: str
    library: ctypes.CDLL
    entry: int
    sizes: tuple[int, ...]
    packed: bool


def loaded_kernel(name: str, library: ctypes.CDLL, symbol: str, *, packed: bool) -> LoadedKernel:
    """Look a kernel up in a compiled module."""
    table = getattr(library, f"tapml_sizes_{symbol}")
    table.restype = ctypes.POINTER(ctypes.c_uint32)
    found = table()
    sizes = tuple(found[index + 1] for index in range(found[0]))
    entry = ctypes.cast(getattr(library, f"tapml_entry_{symbol}"), ctypes.c_void_p).value
    return LoadedKernel(name, symbol, library, entry or 0, sizes, packed)


class PreparedLaunch:
    """A launch whose arguments lie ready.

    Attributes
    ----------
    kernel
        What is run.
    windows
        Address and bytes of the memory that each argument names, guard bands included.
    """

    def __init__(self, launch: BoundLaunch, most_threads: int) -> None:
        self.kernel: LoadedKernel = launch.kernel
        self.grid, self.block = launch.grid, launch.block
        self.dynamic_shared_bytes = launch.dynamic_shared_bytes
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        most = min(MOST_THREADS, most_threads or MOST_THREADS)
        if threads > most:
            raise InputError(
                f"kernel {self.kernel.name!r}: a block of {threads} threads; a simulated block has "
                f"at most {most}"
            )
        if self.dynamic_shared_bytes > MOST_DYNAMIC_BYTES:
            raise InputError(
                f"kernel {self.kernel.name!r}: {self.dynamic_shared_bytes} bytes of dynamic shared "
                f"memory; a simulated block has at most {MOST_DYNAMIC_BYTES}"
            )
        self.uses = [each for each in launch.arguments if isinstance(each, BufferUse)]
        self.windows = [(_address(self.kernel, use), use.nbytes + use.behind) for use in self.uses]
        self._values = _values(self.kernel, launch.arguments)
        addresses = iter(address for address, _ in self.windows)
        values = iter(self._values)
        pointers = [
            next(addresses) if size == 0 else ctypes.addressof(next(values))
            for size in self.kernel.sizes
        ]
        self.arguments = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)

    def given_by_the_host(self) -> list[tuple[int, int]]:
        """Address and bytes of what the kernel reads beside memory: pointers and numbers."""
        held = [self.arguments, *self._values]
        return [(ctypes.addressof(each), ctypes.sizeof(each)) for each in held]

    def still_there(self) -> bool:
        """Whether all its memory is still allocated."""
        return all(use.buffer.nbytes for use in self.uses)


def _address(kernel: LoadedKernel, use: BufferUse) -> int:
    buffer = use.buffer
    if not isinstance(buffer, GuardedBuffer):
        raise InputError(f"kernel {kernel.name!r}: an argument is another device's buffer")
    return buffer.check(use.byte_offset, use.nbytes, f"kernel {kernel.name!r}")


def _values(kernel: LoadedKernel, arguments: Sequence[KernelArgument]) -> list[Any]:
    """The bytes of each number, or of the structure of all of them."""
    given = []
    for argument in arguments:
        if isinstance(argument, ScalarUse):
            given.append(_bytes_of(kernel, argument))
        elif not isinstance(argument, BufferUse):
            raise InputError(f"kernel {kernel.name!r} takes memory and numbers, not tensors")
    buffers = len(arguments) - len(given)
    order = [
        0 if isinstance(argument, BufferUse) else len(_bytes_of(kernel, argument))
        for argument in arguments
        if isinstance(argument, BufferUse | ScalarUse)
    ]
    if kernel.packed:
        if any(order[:buffers]):
            raise InputError(f"kernel {kernel.name!r}: its buffers come before its numbers")
        given = [_structure(given)] if given else []
        order = [0] * buffers + [len(each) for each in given]
    if tuple(order) != kernel.sizes:
        raise InputError(
            f"kernel {kernel.name!r} takes {_told(kernel.sizes)}; got {_told(tuple(order))}"
        )
    return [ctypes.create_string_buffer(each, len(each)) for each in given]


def _told(sizes: tuple[int, ...]) -> str:
    return (
        ", ".join(f"a number of {size} bytes" if size else "memory" for size in sizes) or "nothing"
    )


def _bytes_of(kernel: LoadedKernel, scalar: ScalarUse) -> bytes:
    name = "uint8" if scalar.dtype == "bool" else scalar.dtype
    if dtype(name).numpy_name != name:
        raise InputError(f"kernel {kernel.name!r}: simulated kernels take no {name} numbers")
    value = int(bool(scalar.value)) if scalar.dtype == "bool" else scalar.value
    return bytes(np.dtype(name).type(value).tobytes())


def _structure(values: Sequence[bytes]) -> bytes:
    """C's layout: each number at a multiple of its size, the whole a multiple of the largest."""
    data = b""
    for value in values:
        data += b"\0" * (-len(data) % len(value)) + value
    return data + b"\0" * (-len(data) % max(map(len, values)))


class Runner:
    """Runs launches of one device, with its width of a wave and its schedule."""

    def __init__(self, wave_width: int, schedule: Schedule) -> None:
        self.wave_width = wave_width
        self.schedule = schedule
        self._stacks = Pages(MOST_THREADS * _STACK_BYTES)

    def run(self, launch: PreparedLaunch) -> tuple[int, Any]:
        """Run all blocks; return the time in nanoseconds, and what ended it early or None."""
        run = launch.kernel.library.tapml_run
        run.argtypes = (ctypes.POINTER(_Launch),)
        state = _Launch(
            entry=launch.kernel.entry,
            arguments=ctypes.addressof(launch.arguments),
            grid=launch.grid,
            block=launch.block,
            wave_width=self.wave_width,
            order=ORDERS[self.schedule.order],
            seed=self.schedule.seed,
            most_blocks=4,
            stacks=self._stacks.address,
            stack_bytes=_STACK_BYTES,
            dynamic_shared_bytes=launch.dynamic_shared_bytes,
        )
        begun = time.perf_counter_ns()
        left = 1
        while left == 1:
            started = time.perf_counter()
            with _running:
                left = run(ctypes.byref(state))
            if time.perf_counter() - started < _SLICE_SECONDS:
                state.most_blocks *= 2
        return time.perf_counter_ns() - begun, state.failure if left else None
