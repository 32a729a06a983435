"""A session as a driver: what the conformance cases run on where the device is elsewhere.

Launches become operators of Libraries that are uploaded and recorded, so a case holds only if the
wire, the server's evaluator and the driver behind it all do what they promise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from tapml_rpc.client import PendingCall, RemoteBuffer, RemoteLibrary, RemoteTensor, Session
from tapml_rpc.recordings import RemoteProgram
from tapml_targets.driver import (
    BoundLaunch,
    BufferUse,
    DeviceDescription,
    KernelArgument,
    TensorUse,
)
from tapml_targets.errors import DeviceLostError, TapmlError
from tapml_targets.library import (
    Argument,
    BufferArgument,
    CodeModule,
    Kernel,
    Launch,
    Library,
    ModuleKind,
    OperatorProgram,
    Parameter,
    ScalarArgument,
    TensorArgument,
)

_OPERATOR: Final = "launch"


@dataclass(frozen=True)
class RemoteKernel:
    """A kernel that builds on the device, and its module."""

    module: CodeModule
    kernel: Kernel


@dataclass(frozen=True)
class Recorded:
    """Launches that the device has recorded, as one program, and each of them as a call."""

    program: RemoteProgram
    calls: tuple[tuple[RemoteLibrary, list[RemoteTensor]], ...]


class RemoteDriver:
    """The device of a session, for nobody else meanwhile; see :class:`tapml_targets.driver.Driver`.

    Commands are sent and not waited for, so that the server must keep their order; what may be
    refused is waited for, so that the refusal is raised where it belongs. Closing the driver
    closes the session.
    """

    dialects: Mapping[str, ModuleKind] = {}
    """Unknown here: the server refuses what its driver does not load."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.description: DeviceDescription = session.device
        self._timed: list[PendingCall] | None = None
        self._numbers = itertools.count(1)

    def allocate(self, nbytes: int) -> RemoteBuffer:
        """See :meth:`Driver.allocate`; the device is waited for."""
        with self.cleared():
            buffer = self.session.allocate(nbytes)
            self.session.fence()
        return buffer

    def nbytes(self, buffer: RemoteBuffer) -> int:
        """See :meth:`Driver.nbytes`."""
        return 0 if buffer.freed else buffer.nbytes

    def free(self, buffer: RemoteBuffer) -> None:
        """See :meth:`Driver.free`."""
        self.session.free(buffer)

    def write(self, buffer: RemoteBuffer, byte_offset: int, data: memoryview) -> None:
        """See :meth:`Driver.write`."""
        self.session.write(buffer, data, byte_offset)

    def read(self, buffer: RemoteBuffer, byte_offset: int, nbytes: int) -> memoryview:
        """See :meth:`Driver.read`."""
        with self.cleared():
            return memoryview(self.session.read(buffer, nbytes, byte_offset))

    def read_into(self, buffer: RemoteBuffer, byte_offset: int, target: memoryview) -> None:
        """See :meth:`Driver.read_into`."""
        target[:] = self.read(buffer, byte_offset, target.nbytes)

    def fill(self, buffer: RemoteBuffer, byte_offset: int, nbytes: int, pattern: bytes) -> None:
        """See :meth:`Driver.fill`."""
        self.session.fill(buffer, pattern, nbytes, byte_offset)

    def copy(
        self,
        source: RemoteBuffer,
        source_offset: int,
        target: RemoteBuffer,
        target_offset: int,
        nbytes: int,
    ) -> None:
        """See :meth:`Driver.copy`."""
        if source is target and abs(source_offset - target_offset) < nbytes:
            # The wire has no copy that overlaps itself.
            between = self.session.allocate(nbytes)
            self.session.copy(source, between, nbytes, source_offset)
            source, source_offset = between, 0
        self.session.copy(source, target, nbytes, source_offset, target_offset)

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, RemoteKernel]:
        """See :meth:`Driver.load`."""
        own = {each.name: each for each in kernels}
        library = Library(self.description.platform, (module,), own, {})
        with self.cleared():
            self.session.unload(self.session.upload(library))
        return {name: RemoteKernel(module, each) for name, each in own.items()}

    def launch(
        self,
        kernel: RemoteKernel,
        arguments: Sequence[KernelArgument],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
    ) -> None:
        """See :meth:`Driver.launch`."""
        self.launch_all(self.bind([BoundLaunch(kernel, tuple(arguments), grid, block)]))

    def bind(self, launches: Sequence[BoundLaunch]) -> Recorded:
        """See :meth:`Driver.bind`."""
        with self.cleared():
            calls = tuple(map(self._operator, launches))
            with self.session.program(f"launches {next(self._numbers)}") as program:
                for library, tensors in calls:
                    program.call(library, _OPERATOR, tensors)
            self.session.fence()
        return Recorded(program, calls)

    def launch_all(self, sequence: Recorded) -> None:
        """See :meth:`Driver.launch_all`."""
        with self.cleared(), self.session.batch() as batch:
            if self._timed is None:
                batch.execute(sequence.program)
                return
            for library, tensors in sequence.calls:
                self._timed.append(batch.call(library, _OPERATOR, tensors, timed=True))

    def begin_timing(self) -> None:
        """See :meth:`Driver.begin_timing`."""
        self._timed = []

    def end_timing(self) -> Callable[[], int]:
        """See :meth:`Driver.end_timing`."""
        timed, self._timed = self._timed or [], None
        return lambda: sum(each.result().kernel_nanoseconds or 0 for each in timed)

    def finish(self) -> None:
        """See :meth:`Driver.finish`."""
        with self.cleared():
            self.session.fence()

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        self.session.close()

    def _operator(self, launch: BoundLaunch) -> tuple[RemoteLibrary, list[RemoteTensor]]:
        """An operator of one launch, with its windows as parameters and its numbers built in."""
        given: RemoteKernel = launch.kernel
        parameters: list[Parameter] = []
        tensors: list[RemoteTensor] = []
        arguments: list[Argument] = []
        shape: tuple[int, ...]
        for each in launch.arguments:
            name = f"p{len(parameters)}"
            if isinstance(each, BufferUse):
                # The guard band is part of the window: what is written there stays there.
                shape, dtype = (each.nbytes + each.behind,), "uint8"
                arguments.append(BufferArgument(name))
            elif isinstance(each, TensorUse):
                shape, dtype = each.shape, each.dtype
                arguments.append(TensorArgument(name))
            else:
                arguments.append(ScalarArgument(int(each.value), each.dtype))
                continue
            parameters.append(Parameter(name, shape, dtype, "inout"))
            tensors.append(RemoteTensor(each.buffer, each.byte_offset, shape, dtype))
        statement = Launch(given.kernel.name, tuple(arguments), launch.grid, launch.block)
        operator = OperatorProgram(_OPERATOR, tuple(parameters), (statement,))
        library = Library(
            self.description.platform,
            (given.module,),
            {given.kernel.name: given.kernel},
            {_OPERATOR: operator},
        )
        return self.session.upload(library), tensors

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Leave the session usable after an error of the device."""
        try:
            yield
        except DeviceLostError:
            raise
        except TapmlError:
            with suppress(TapmlError):
                self.session.reset()
            raise

    def held_bytes(self) -> int:
        """Device memory of all sessions of the server, as it last said."""
        return self.session.load().get("device_bytes", 0)
